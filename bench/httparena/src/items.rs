//! The profiles with JSON: the first items of a data set, with a total that is computed for each
//! request.

use crate::{Refused, coding, number};
use onrush::compression::{Accepted, Coding};
use onrush::{Request, Response};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

/// The data set, in its order.
pub(crate) struct Items(Vec<Item>);

#[derive(Deserialize, Serialize)]
struct Item {
    id: i64,
    name: String,
    category: String,
    price: i64,
    quantity: i64,
    active: bool,
    tags: Vec<String>,
    rating: Rating,
}

#[derive(Deserialize, Serialize)]
struct Rating {
    score: i64,
    count: i64,
}

#[derive(Serialize)]
struct Priced<'a> {
    #[serde(flatten)]
    item: &'a Item,
    total: i64,
}

#[derive(Serialize)]
struct Page<'a> {
    items: Vec<Priced<'a>>,
    count: usize,
}

impl Item {
    /// The item with price × quantity × `multiplier`; `None` if that is too large.
    fn priced(&self, multiplier: i64) -> Option<Priced<'_>> {
        let total = self.price.checked_mul(self.quantity)?;
        let total = total.checked_mul(multiplier)?;
        Some(Priced { item: self, total })
    }
}

impl Items {
    /// Reads the data set of a file.
    pub(crate) fn read(file: &Path) -> io::Result<Items> {
        let read = || Ok(serde_json::from_reader(BufReader::new(File::open(file)?))?);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        read().map(Items).map_err(named)
    }

    /// The first `count` items, or all if there are fewer. `None` if a total is too large.
    fn first(&self, count: usize, multiplier: i64) -> Option<Page<'_>> {
        let items = self
            .0
            .iter()
            .take(count)
            .map(|item| item.priced(multiplier));
        let items: Vec<_> = items.collect::<Option<_>>()?;
        Some(Page {
            count: items.len(),
            items,
        })
    }
}

/// The first `{count}` items. Their multiplier is the parameter `m`, 1 without one. The content is
/// compressed for a client that accepts it.
pub(crate) async fn first(request: Request) -> Result<Response, Refused> {
    let count = request.param("count").and_then(|count| count.parse().ok());
    let count = count.ok_or(Refused::Invalid("the path does not end with a number\n"))?;
    let multiplier = number(&request, "m")?.unwrap_or(1);
    let page = request.state::<Items>().first(count, multiplier);
    let page = page.ok_or(Refused::Invalid("a total is too large\n"))?;
    let response = match Accepted::of(&request).contains(Coding::Gzip) {
        true => Response::json(coding::gzip(&page)?).with_header("Content-Encoding", "gzip"),
        false => Response::json(serde_json::to_vec(&page).map_err(io::Error::from)?),
    };
    Ok(response.with_header("Vary", "Accept-Encoding"))
}
