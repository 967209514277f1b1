//! An API in the usual way: JSON, tables of SQLite by sqlx, and its description by utoipa. Both
//! servers respond alike, from a database of their own.

use crate::client::{ask, get as get_once};
use crate::same::{request, serve};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use testing::TempDir;
use tokio::runtime::Handle;
use utoipa::{OpenApi, ToSchema};

/// Connections of an application to its database.
const CONNECTIONS: u32 = 4;

/// What clients send.
#[derive(Debug, Deserialize, ToSchema)]
struct NewTask {
    /// Different from those of all other tasks.
    title: String,
    #[serde(default)]
    done: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct Task {
    id: i64,
    title: String,
    done: bool,
}

type Columns = (i64, String, bool);

impl From<Columns> for Task {
    fn from((id, title, done): Columns) -> Task {
        Task { id, title, done }
    }
}

/// An error of the database as a response.
struct Failure(sqlx::Error);

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Failure {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let is_taken = |error: &dyn sqlx::error::DatabaseError| error.is_unique_violation();
        let (status, reason) = match &self.0 {
            sqlx::Error::RowNotFound => (StatusCode::NOT_FOUND, "no such task"),
            sqlx::Error::Database(error) if is_taken(&**error) => {
                (StatusCode::CONFLICT, "there is a task with this title")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "the database failed"),
        };
        (status, Json(json!({ "error": reason }))).into_response()
    }
}

#[derive(Deserialize)]
struct Filter {
    done: Option<bool>,
    #[serde(default = "most")]
    limit: u32,
}

fn most() -> u32 {
    1000
}

#[utoipa::path(get, path = "/tasks", responses((status = 200, body = [Task])),
    params(("done" = Option<bool>, Query), ("limit" = Option<u32>, Query)))]
async fn list(
    State(tasks): State<SqlitePool>,
    Query(filter): Query<Filter>,
) -> Result<Json<Vec<Task>>, Failure> {
    let text = "SELECT id, title, done FROM tasks WHERE done = ? OR ? IS NULL ORDER BY id LIMIT ?";
    let query = sqlx::query_as::<_, Columns>(text);
    let query = query.bind(filter.done).bind(filter.done).bind(filter.limit);
    let rows = query.fetch_all(&tasks).await?;
    Ok(Json(rows.into_iter().map(Task::from).collect()))
}

const INSERT: &str = "INSERT INTO tasks (title, done) VALUES (?, ?) RETURNING id, title, done";

#[utoipa::path(post, path = "/tasks", request_body = NewTask,
    responses((status = 201, body = Task), (status = 409)))]
async fn create(
    State(tasks): State<SqlitePool>,
    Json(new): Json<NewTask>,
) -> Result<impl IntoResponse, Failure> {
    let query = sqlx::query_as::<_, Columns>(INSERT);
    let row = query.bind(new.title).bind(new.done).fetch_one(&tasks);
    let task = Task::from(row.await?);
    let place = [(header::LOCATION, format!("/tasks/{}", task.id))];
    Ok((StatusCode::CREATED, place, Json(task)))
}

/// All of them or none.
#[utoipa::path(post, path = "/tasks/batch", request_body = [NewTask],
    responses((status = 201, body = [Task]), (status = 409)))]
async fn create_all(
    State(tasks): State<SqlitePool>,
    Json(all): Json<Vec<NewTask>>,
) -> Result<impl IntoResponse, Failure> {
    let mut transaction = tasks.begin().await?;
    let mut created = Vec::new();
    for new in all {
        let query = sqlx::query_as::<_, Columns>(INSERT);
        let row = query.bind(new.title).bind(new.done);
        created.push(Task::from(row.fetch_one(&mut *transaction).await?));
    }
    transaction.commit().await?;
    Ok((StatusCode::CREATED, Json(created)))
}

#[utoipa::path(get, path = "/tasks/{id}", params(("id" = i64, Path)),
    responses((status = 200, body = Task), (status = 404)))]
async fn read(State(tasks): State<SqlitePool>, Path(id): Path<i64>) -> Result<Json<Task>, Failure> {
    let query = sqlx::query_as::<_, Columns>("SELECT id, title, done FROM tasks WHERE id = ?");
    let row = query.bind(id).fetch_one(&tasks).await?;
    Ok(Json(row.into()))
}

#[utoipa::path(put, path = "/tasks/{id}", params(("id" = i64, Path)), request_body = NewTask,
    responses((status = 200, body = Task), (status = 404), (status = 409)))]
async fn replace(
    State(tasks): State<SqlitePool>,
    Path(id): Path<i64>,
    Json(new): Json<NewTask>,
) -> Result<Json<Task>, Failure> {
    let text = "UPDATE tasks SET title = ?, done = ? WHERE id = ? RETURNING id, title, done";
    let query = sqlx::query_as::<_, Columns>(text);
    let row = query.bind(new.title).bind(new.done).bind(id);
    Ok(Json(row.fetch_one(&tasks).await?.into()))
}

#[utoipa::path(delete, path = "/tasks/{id}", params(("id" = i64, Path)),
    responses((status = 204), (status = 404)))]
async fn remove(
    State(tasks): State<SqlitePool>,
    Path(id): Path<i64>,
) -> Result<StatusCode, Failure> {
    let query = sqlx::query("DELETE FROM tasks WHERE id = ?");
    match query.bind(id).execute(&tasks).await?.rows_affected() {
        0 => Err(sqlx::Error::RowNotFound.into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Tasks", version = "1.0.0"),
    paths(list, create, create_all, read, replace, remove)
)]
struct Description;

/// The API, with an empty database in a file of its own in `folder`.
fn api(folder: &TempDir) -> Router {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = folder.path().join(format!("tasks-{number}.db"));
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let tasks = SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_lazy_with(options);
    let table = "CREATE TABLE tasks (\
        id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL UNIQUE, done BOOLEAN NOT NULL)";
    let made = Handle::current().block_on(sqlx::query(table).execute(&tasks));
    made.expect("a table");
    Router::new()
        .route("/tasks", get(list).post(create))
        .route("/tasks/batch", post(create_all))
        .route("/tasks/{id}", get(read).put(replace).delete(remove))
        .route("/openapi.json", get(async || Json(Description::openapi())))
        .with_state(tasks)
}

const JSON: &str = "Content-Type: application/json\r\n";

fn send(line: &str, body: &str) -> Vec<u8> {
    request(line, JSON, body.as_bytes())
}

#[test]
fn an_api_with_tables_of_sqlite() {
    let _dog = testing::watchdog("an_api_with_tables_of_sqlite");
    let folder = TempDir::new();
    let both = serve(|| api(&folder));
    // In this order, on each server: a request, and the status and the text of its response.
    let rows = [
        ("GET /tasks", "", 200, "[]"),
        (
            "POST /tasks",
            r#"{"title":"buy \u00e9clairs"}"#,
            201,
            r#"{"id":1,"title":"buy éclairs","done":false}"#,
        ),
        (
            "POST /tasks",
            r#"{"title":"buy éclairs"}"#,
            409,
            r#"{"error":"there is a task with this title"}"#,
        ),
        (
            "POST /tasks/batch",
            r#"[{"title":"a"},{"title":"b","done":true},{"title":"'; DROP TABLE tasks; --"}]"#,
            201,
            r#"{"id":2,"title":"a","done":false}"#,
        ),
        (
            "POST /tasks/batch",
            r#"[{"title":"c"},{"title":"a"}]"#,
            409,
            "error",
        ),
        ("GET /tasks/5", "", 404, r#"{"error":"no such task"}"#),
        (
            "GET /tasks?done=true",
            "",
            200,
            r#"[{"id":3,"title":"b","done":true}]"#,
        ),
        ("GET /tasks?done=maybe", "", 400, "done"),
        ("GET /tasks?limit=1&done=false", "", 200, r#""id":1"#),
        (
            "PUT /tasks/2",
            r#"{"title":"a","done":true}"#,
            200,
            r#""done":true"#,
        ),
        ("PUT /tasks/2", r#"{"title":"b"}"#, 409, "error"),
        ("PUT /tasks/9", r#"{"title":"z"}"#, 404, "error"),
        ("DELETE /tasks/3", "", 204, ""),
        ("DELETE /tasks/3", "", 404, "error"),
        ("HEAD /tasks", "", 200, ""),
        ("GET /tasks", "", 200, "DROP TABLE"),
        ("POST /tasks", r#"{"title":"#, 400, "EOF"),
        ("POST /tasks", r#"{"done":true}"#, 422, "title"),
        ("GET /tasks/x", "", 400, "x"),
        ("PATCH /tasks/1", "", 405, ""),
    ];
    let requests: Vec<_> = rows.iter().map(|row| send(row.0, row.1)).collect();
    both.compare(&requests, |number, reply| {
        let (line, _, status, text) = rows[number];
        assert_eq!(reply.status, status, "{line}: {reply:?}");
        assert!(reply.text().contains(text), "{line}: {reply:?}");
    });
}

#[test]
fn clients_that_write_at_the_same_time_lose_nothing() {
    const CLIENTS: usize = 8;
    const TASKS: usize = 10;
    let _dog = testing::watchdog("clients_that_write_at_the_same_time_lose_nothing");
    let folder = TempDir::new();
    let both = serve(|| api(&folder));
    let titles = |address: SocketAddr| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for number in 0..TASKS {
                        let body = format!(r#"{{"title":"{client}-{number:02}"}}"#);
                        let reply = ask(address, &send("POST /tasks", &body));
                        assert_eq!(reply.status, 201, "{reply:?}");
                    }
                });
            }
        });
        let tasks: Vec<Value> =
            serde_json::from_slice(&get_once(address, "/tasks").content).expect("JSON");
        let title = |task: &Value| task["title"].as_str().map(str::to_owned);
        let mut titles: Vec<_> = tasks.iter().filter_map(title).collect();
        titles.sort();
        titles
    };
    let expected = titles(both.axum);
    assert_eq!(expected.len(), CLIENTS * TASKS);
    for (driver, address) in &both.onrush {
        assert_eq!(titles(*address), expected, "{driver}");
    }
}

#[test]
fn the_description_of_an_api() {
    let _dog = testing::watchdog("the_description_of_an_api");
    let folder = TempDir::new();
    let both = serve(|| api(&folder));
    let requests = [
        request("GET /openapi.json", "", b""),
        request("HEAD /openapi.json", "", b""),
    ];
    both.compare(&requests, |number, reply| {
        assert_eq!(reply.status, 200);
        assert_eq!(reply.fields["content-type"], ["application/json"]);
        if number == 0 {
            let document: Value = serde_json::from_slice(&reply.content).expect("JSON");
            assert!(document["paths"]["/tasks/{id}"]["put"]["requestBody"].is_object());
            assert!(document["components"]["schemas"]["Task"].is_object());
        }
    });
}
