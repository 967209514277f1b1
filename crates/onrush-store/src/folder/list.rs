//! Lists a folder: one page, or all of it in steps ([`Cursor`]).
//!
//! The work is done by jobs of the pool, which end early if others wait ([`super::listing_queue`]).

use super::again;
use super::listing_queue::{self, Admission, Permit, Query, StartedPage};
use super::recent_names::{PageMemory, Part, Stamp};
use super::walk::{self, End, Walk};
use super::{Folder, FolderInner};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::listing::ListingState;
use crate::store::{Cursor, CursorHow, DetailedEntry, ListHow, Page};
use onrush_rt::blocking::BlockingJob;
use onrush_rt::coop;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;

/// Entries that are copied in one step.
const COPY_STEP: usize = 64;
/// The cost of a copied entry in the cooperative budget, in bytes. A copy allocates a name.
const COPY_COST: usize = 256;

/// A page that is being made.
struct Making {
    query: Arc<Query>,
    walk: Walk,
    /// The names that are still to be looked at.
    left: usize,
    found: Vec<DetailedEntry>,
    /// What the names that are read are kept as.
    part: Option<Part>,
}

/// One page of a folder.
pub(super) async fn page(
    inner: &Arc<FolderInner>,
    folder: Option<&Key>,
    how: ListHow,
) -> Result<Page> {
    let client = how.client;
    let how = ListHow { client: 0, ..how }; // A page is the same for all.
    let limit = how.limit.clamp(1, ListHow::LIMIT_MAX);
    let query = Arc::new(Query {
        folder: folder.cloned(),
        how,
    });
    let mut permit = match listing_queue::wait(inner, &query, client).await {
        Admission::Run(permit) => permit,
        Admission::Shared(page, _permit) => return Ok(copy(page).await),
    };
    let began = permit.began();
    let mut making = Making::new(inner, query, limit);
    loop {
        let job = move |inner: &Arc<FolderInner>| {
            let end = making.step(inner, &permit)?;
            let page = match end {
                End::Wanted => None,
                End::Enough | End::Folder => Some(making.finish(inner)),
            };
            if let Some(page) = &page {
                permit.share(&making.query, began, page);
            }
            // Released only when the page is taken from the job, so that pages do not pile up.
            Ok((page, making, permit))
        };
        let (page, goes_on, used) = run(inner, job).await?;
        if let Some(page) = page {
            return Ok(page);
        }
        making = goes_on;
        let _started = StartedPage::new(inner, client);
        drop(used);
        let wait = listing_queue::wait_for_part(inner, client, false);
        permit = wait.await.into_permit();
    }
}

impl Making {
    fn new(inner: &Arc<FolderInner>, query: Arc<Query>, limit: usize) -> Making {
        let how = CursorHow {
            after: query.how.after.clone(),
            hidden: query.how.hidden,
            ..CursorHow::default()
        };
        let memory = Box::new(PageMemory::new(&inner.recent_names));
        // One more than the page, to find out whether there is a next page.
        let walk = Walk::new(query.folder.clone(), how, limit + 1, memory);
        Making {
            query,
            walk,
            left: limit,
            found: Vec::new(),
            part: None,
        }
    }

    fn step(&mut self, inner: &FolderInner, permit: &Permit) -> Result<End> {
        if !self.walk.has_started() {
            self.begin(inner)?;
        }
        (self.walk).step(inner, permit, &mut self.left, &mut self.found)
    }

    /// Takes the names of an earlier page, if there are any. Otherwise notes what is read now.
    fn begin(&mut self, inner: &FolderInner) -> Result<()> {
        let stamp = match &self.query.folder {
            None => Stamp::of(&inner.root),
            Some(key) => Stamp::of(&walk::open(inner, key)?),
        };
        let Some(stamp) = stamp else { return Ok(()) };
        let part = Part {
            folder: self.query.folder.clone(),
            hidden: self.query.how.hidden,
            after: self.query.how.after.clone().unwrap_or_default(),
            stamp,
        };
        match inner.recent_names.find(&part, self.left) {
            Some((names, at)) => self.walk.use_names(names, at),
            None => self.part = Some(part),
        }
        Ok(())
    }

    fn finish(&mut self, inner: &FolderInner) -> Page {
        let (mut next, folder) = (None, self.query.folder.as_ref());
        if let Some((names, at)) = self.walk.names() {
            if at > 0 && (at < names.len() || names.until.is_some()) {
                next = Some(names.get(at - 1).0.to_vec());
            }
            match (&next, self.part.take()) {
                (Some(_), Some(part)) => inner.recent_names.keep(part, names),
                (Some(_), None) => {}
                // Most folders fit into their first page.
                (None, _) if self.query.how.after.is_none() => {}
                (None, _) => inner.recent_names.forget(folder),
            }
        }
        let found = mem::take(&mut self.found).into_iter();
        Page {
            entries: found.map(|one| one.entry).collect(),
            next,
        }
    }
}

/// What a job has read of a folder for a cursor.
struct Read {
    walk: Box<Walk>,
    found: Vec<DetailedEntry>,
    end: End,
}

/// The place of a cursor in a folder.
enum CursorAt {
    Walk(Box<Walk>),
    /// A job reads the next entries, while the owner of the cursor uses those before them.
    Ahead(BlockingJob<Result<Read>>),
}

/// The next entries of a folder.
pub(super) async fn next(
    inner: &Arc<FolderInner>,
    cursor: &mut Cursor,
    limit: usize,
) -> Result<Vec<DetailedEntry>> {
    let client = cursor.how.client;
    let (mut place, mut begins) = match mem::replace(&mut cursor.state, ListingState::End) {
        ListingState::Begin(memory) => {
            let (folder, how) = (cursor.folder.clone(), cursor.how.clone());
            let walk = Walk::new(folder, how, 1, memory);
            (CursorAt::Walk(Box::new(walk)), true)
        }
        ListingState::Place(place) => match place.downcast::<CursorAt>() {
            Ok(place) => (*place, false),
            Err(_) => return Err(StoreError::Unsupported),
        },
        ListingState::Page(_) | ListingState::End => return Ok(Vec::new()),
    };
    loop {
        let job = match place {
            CursorAt::Walk(walk) => {
                let permit = listing_queue::wait_for_part(inner, client, begins).await;
                read(inner, walk, permit.into_permit(), limit)
            }
            CursorAt::Ahead(job) => job,
        };
        begins = false;
        let Read { walk, found, end } = job.await??;
        if end == End::Folder {
            return Ok(found);
        }
        if found.is_empty() {
            place = CursorAt::Walk(walk);
            continue;
        }
        // A job of an inline pool would wait, with its permit, until the owner of the cursor asks
        // for its result.
        let permit = match inner.pool.is_inline() {
            true => None,
            false => listing_queue::try_permit(inner),
        };
        cursor.state = ListingState::Place(Box::new(match permit {
            Some(permit) => CursorAt::Ahead(read(inner, walk, permit, limit)),
            None => CursorAt::Walk(walk),
        }));
        return Ok(found);
    }
}

/// Begins to read the next entries.
fn read(
    inner: &Arc<FolderInner>,
    mut walk: Box<Walk>,
    permit: Permit,
    limit: usize,
) -> BlockingJob<Result<Read>> {
    let looked = again::look_if_due(inner);
    let shared = inner.clone();
    inner.pool.run(move || {
        looked?;
        let (mut found, mut end) = (Vec::new(), End::Enough);
        while found.is_empty() && end == End::Enough {
            let mut left = limit.clamp(1, ListHow::LIMIT_MAX);
            end = walk.step(&shared, &permit, &mut left, &mut found)?;
        }
        Ok(Read { walk, found, end })
    })
}

/// Fails as a listing of the folder would.
pub(super) fn check(inner: &FolderInner, folder: Option<&Key>) -> Result<()> {
    folder.map_or(Ok(()), |key| walk::open(inner, key).map(drop))
}

async fn run<T, F>(inner: &Arc<FolderInner>, job: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Arc<FolderInner>) -> Result<T> + Send + 'static,
{
    let folder = Folder {
        inner: inner.clone(),
    };
    folder.run(&inner.pool, job).await
}

/// Copies a page that other requests share. A page may have [`ListHow::LIMIT_MAX`] entries, and the
/// calling worker copies them, so it does so in steps that draw on the cooperative budget.
pub(super) async fn copy(page: Arc<Page>) -> Page {
    let page = match Arc::try_unwrap(page) {
        Ok(page) => return page, // No other request needs it.
        Err(shared) => shared,
    };
    let mut entries = Vec::with_capacity(page.entries.len());
    for step in page.entries.chunks(COPY_STEP) {
        poll_fn(coop::poll_proceed).await;
        entries.extend_from_slice(step);
        coop::spend(step.len() * COPY_COST);
    }
    Page {
        entries,
        next: page.next.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{Kind, Version};
    use crate::store::Entry;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;
    use std::cell::Cell;
    use std::pin::pin;
    use std::rc::Rc;

    #[test]
    fn other_tasks_run_while_a_large_page_is_copied() {
        let entry = |number: usize| Entry {
            name: number.to_string().into_bytes(),
            kind: Kind::File,
            size: 1,
            modified_ns: 0,
            version: Version::parse(b"x").unwrap(),
        };
        let page = Arc::new(Page {
            entries: (0..ListHow::LIMIT_MAX).map(entry).collect(),
            next: Some(b"next".to_vec()),
        });
        let polls = Rc::new(Cell::new(0));
        let copied = Rc::new(Cell::new(None));
        let (counted, result, shared) = (polls.clone(), copied.clone(), page.clone());
        let task = async move {
            let mut copy = pin!(copy(shared));
            let copy = poll_fn(|cx| {
                counted.set(counted.get() + 1);
                copy.as_mut().poll(cx)
            });
            result.set(Some(copy.await));
        };
        let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
        worker.context().spawn(task).detach();
        let copy = loop {
            worker.poll(&(), false).unwrap();
            if let Some(copy) = copied.take() {
                break copy;
            }
        };
        assert_eq!(copy, *page);
        let polls_min = ListHow::LIMIT_MAX * COPY_COST / coop::BYTES as usize;
        assert!(polls.get() >= polls_min, "{} polls", polls.get());
    }
}
