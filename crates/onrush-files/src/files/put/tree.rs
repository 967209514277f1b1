//! Changes of a folder with everything beneath it: copy and delete, object by object.
//!
//! They use only the operations of the store for single objects, so they work on each store, do not
//! block a worker, and are not atomic: what cannot be changed is reported, and the rest is done.
//! If the client disconnects, or loses a right that it needs, the change ends with the object that
//! is being changed.
//!
//! Memory does not grow with the folder: some names and entries of each folder on the way down,
//! which the budget of listings limits, and at most [`FAILURES_MAX`] failures.
//!
//! What a listing does not show is not touched: hidden names, the store's own, and files that are
//! neither objects nor folders. A folder with one of these remains. A symbolic link is deleted, and
//! never what is behind it; a copy has its target, except for a link to a folder that contains it.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::entries::Entries;
use crate::files::put::writes::Writes;
use crate::files::shared::client_rights::Permission;
use crate::files::shared::multistatus::Failures;
use crate::files::shared::objects::Objects;
use crate::files::shared::run_to_end::client_has_gone;
use crate::shares::Holder;
use onrush_store::{Condition, CursorHow, DetailedEntry, Entry, Key, Kind, Overlap};
use onrush_store::{Relocation, StoreError, Version};
use std::sync::Arc;

/// The number of failures after which a change ends.
pub(in crate::files) const FAILURES_MAX: usize = 100;

pub(in crate::files) const SAME: HttpError =
    HttpError::new(403, "the destination is the source, or lies beneath it");
pub(in crate::files) const CONTAINS: HttpError =
    HttpError::new(409, "the destination contains the source");
/// Why a change ends early. Its client does not get this.
const HAS_GONE: HttpError = HttpError::new(503, "the client has disconnected");

/// A folder whose entries are being changed.
struct Level {
    folder: Key,
    /// The version that its entry had, to recognise it when a link leads back to it.
    version: Option<Version>,
    entries: Entries,
    /// Something in it remains.
    is_incomplete: bool,
}

/// A step of the way through a tree.
enum Step {
    /// An object or folder, before what it contains.
    Entry(Key, Entry),
    /// A folder, after everything that it contains. `true`: something in it remains.
    End(Key, bool),
}

/// The way through a folder and those beneath it that are entered.
struct Walk {
    objects: Arc<Objects>,
    /// Whose memory the entries are.
    holder: Holder,
    permission: Permission,
    levels: Vec<Level>,
    failures: Failures,
    /// The number of failures after which the way ends.
    failures_max: usize,
}

impl Walk {
    fn new(
        objects: &Arc<Objects>,
        holder: Holder,
        permission: Permission,
        failures_max: usize,
    ) -> Walk {
        Walk {
            objects: objects.clone(),
            holder,
            permission,
            levels: Vec::new(),
            failures: Failures::new(),
            failures_max,
        }
    }

    /// Continues with the entries of a folder.
    fn enter(&mut self, folder: Key, version: Option<Version>) {
        let how = CursorHow::default();
        let entries = Entries::new(&self.objects, self.holder, Some(folder.clone()), how);
        self.levels.push(Level {
            folder,
            version,
            entries,
            is_incomplete: false,
        });
    }

    /// The next step. `None`: the way ends, too much has failed, or the client has gone or may not
    /// go on.
    async fn next(&mut self) -> Option<Step> {
        loop {
            if self.failures.len() >= self.failures_max {
                return None;
            }
            let level = self.levels.last_mut()?;
            let ends = match client_has_gone() {
                true => Err(HAS_GONE),
                false => self.permission.check(),
            };
            if let Err(failure) = ends {
                let folder = level.folder.clone();
                self.fail_with(folder, Kind::Directory, failure);
                self.levels.clear();
                return None;
            }
            let found = level.entries.next(&self.objects).await;
            if let Ok(Some(DetailedEntry { entry, .. })) = found {
                match Key::of_entry(Some(&level.folder), &entry.name) {
                    Ok(key) => return Some(Step::Entry(key, entry)),
                    Err(_) => level.is_incomplete = true, // Too long to be named.
                }
                continue;
            }
            let level = self.levels.pop()?;
            match found {
                Err(error) => self.fail(level.folder, Kind::Directory, error),
                Ok(_) => {
                    if level.is_incomplete {
                        self.mark_incomplete();
                    }
                    return Some(Step::End(level.folder, level.is_incomplete));
                }
            }
        }
    }

    fn mark_incomplete(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.is_incomplete = true;
        }
    }

    fn fail(&mut self, key: Key, kind: Kind, error: StoreError) {
        let failure = (self.objects).store_failure(error, Operation::Write, Some(&key));
        self.fail_with(key, kind, failure);
    }

    fn fail_with(&mut self, key: Key, kind: Kind, failure: HttpError) {
        self.failures.push((key, kind, failure));
        self.mark_incomplete();
    }

    /// Whether an entry is one of the folders on the way, behind a link.
    fn is_loop(&self, entry: &Entry) -> bool {
        let is_same = |level: &Level| level.version == Some(entry.version);
        entry.modified_ns != 0 && self.levels.iter().any(is_same)
    }
}

impl Writes {
    /// Deletes a folder with everything in it. The condition is that of the folder. A link is
    /// deleted itself.
    pub(in crate::files) async fn delete_tree(
        self: &Arc<Writes>,
        folder: &Key,
        condition: Condition,
        holder: Holder,
        permission: Permission,
    ) -> Result<Failures, HttpError> {
        let deleted = (self
            .objects
            .store
            .delete(folder, Kind::Directory, condition))
        .await;
        match deleted {
            Ok(_) => return Ok(Failures::new()),
            Err(StoreError::NotEmpty) => {}
            Err(error) => {
                return Err(self
                    .objects
                    .store_failure(error, Operation::Write, Some(folder)));
            }
        }
        let mut walk = Walk::new(&self.objects, holder, permission, FAILURES_MAX);
        walk.enter(folder.clone(), None);
        while let Some(step) = walk.next().await {
            if let Step::Entry(key, entry) = &step
                && let Err(failure) = self.objects.check_no_state(key)
            {
                walk.fail_with(key.clone(), entry.kind, failure);
                continue;
            }
            match step {
                Step::Entry(key, entry) => match self.delete_one(&key, entry.kind).await {
                    Ok(()) => {}
                    // Not a link, which would be deleted itself.
                    Err(StoreError::NotEmpty) => walk.enter(key, None),
                    Err(error) => walk.fail(key, entry.kind, error),
                },
                Step::End(_, true) => {} // It contains what failed.
                Step::End(key, false) => {
                    if let Err(error) = self.delete_one(&key, Kind::Directory).await {
                        walk.fail(key, Kind::Directory, error);
                    }
                }
            }
        }
        Ok(walk.failures)
    }

    async fn delete_one(&self, key: &Key, kind: Kind) -> Result<(), StoreError> {
        match self.objects.store.delete(key, kind, Condition::None).await {
            // Another client was faster.
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Copies everything beneath a folder to the folder `at`, which exists. The condition of the
    /// destination is that of each object and folder there: other clients may create some. `at` is
    /// the destination, or a place from which the copy moves there; what fails has the names at the
    /// destination. Ends after so many failures.
    pub(in crate::files) async fn copy_tree(
        self: &Arc<Writes>,
        how: &Relocation,
        at: &Key,
        failures_max: usize,
        (holder, permission): (Holder, &Permission),
    ) -> Failures {
        let (from, to) = (&how.from, &how.to);
        let version = self.objects.store.meta(from).await.map(|meta| meta.version);
        let mut walk = Walk::new(&self.objects, holder, permission.clone(), failures_max);
        walk.enter(from.clone(), version.ok());
        while let Some(step) = walk.next().await {
            let Step::Entry(key, entry) = step else {
                continue;
            };
            if entry.kind == Kind::Directory && walk.is_loop(&entry) {
                continue;
            }
            let below = &key.as_bytes()[from.as_bytes().len()..];
            let named = Key::parse(&[to.as_bytes(), below].concat());
            let place = Key::parse(&[at.as_bytes(), below].concat());
            let (copy, place) = match (named, place) {
                (Ok(copy), Ok(place))
                    if copy.segments().count() <= self.objects.options.depth_max =>
                {
                    (copy, place)
                }
                _ => {
                    walk.fail_with(key, entry.kind, HttpError::TOO_DEEP);
                    continue;
                }
            };
            // What is not replaced contains nothing yet.
            let is_replaced = at != to;
            if let Err(failure) = (self.check_copied(&key, &entry, how, &copy, is_replaced)).await {
                walk.fail_with(copy, entry.kind, failure);
                continue;
            }
            let copied = match entry.kind {
                Kind::Directory => self.copy_folder(&key, &place, &how.to_condition).await,
                Kind::File => self.copy_object(&key, &place, &how.to_condition).await,
            };
            match (copied, entry.kind) {
                (Ok(()), Kind::Directory) => walk.enter(key, Some(entry.version)),
                (Ok(()), Kind::File) => {}
                (Err(error), kind) => walk.fail(copy, kind, error),
            }
        }
        walk.failures
    }

    /// Whether something beneath the source of a copy may be copied to `copy`. `is_replaced`: the
    /// copy replaces what is at the destination.
    async fn check_copied(
        &self,
        key: &Key,
        entry: &Entry,
        how: &Relocation,
        copy: &Key,
        is_replaced: bool,
    ) -> Result<(), HttpError> {
        self.objects.check_no_state(copy)?;
        if entry.kind == Kind::File {
            let limits = self.uploads.limits();
            if entry.size > limits.object_bytes_max {
                return Err(limits.too_large());
            }
            if !is_replaced {
                return Ok(());
            }
        }
        // A link or a mount in the source may lead to the destination.
        match self.objects.store.overlap(key, &how.to).await {
            Ok(Overlap::None) => Ok(()),
            Ok(Overlap::Contains) => Err(CONTAINS),
            Ok(Overlap::Same | Overlap::Beneath) => Err(SAME),
            Err(error) => Err(self
                .objects
                .store_failure(error, Operation::Write, Some(key))),
        }
    }

    /// Fails if there is a state of Terraform beneath a folder that is to be moved or replaced.
    pub(in crate::files) async fn check_no_states(
        self: &Arc<Writes>,
        folder: &Key,
        (holder, permission): (Holder, &Permission),
    ) -> Result<(), HttpError> {
        if !self.objects.options.terraform_state {
            return Ok(());
        }
        let mut walk = Walk::new(&self.objects, holder, permission.clone(), 1);
        walk.enter(folder.clone(), None);
        while let Some(step) = walk.next().await {
            let Step::Entry(key, entry) = step else {
                continue;
            };
            self.objects.check_no_state(&key)?;
            if entry.kind == Kind::Directory && !walk.is_loop(&entry) {
                walk.enter(key, Some(entry.version));
            }
        }
        match walk.failures.pop() {
            Some((.., failure)) => Err(failure),
            None => Ok(()),
        }
    }

    async fn copy_object(
        &self,
        from: &Key,
        to: &Key,
        condition: &Condition,
    ) -> Result<(), StoreError> {
        let copied = self.copy(Relocation {
            from: from.clone(),
            from_condition: Condition::None,
            to: to.clone(),
            to_condition: condition.clone(),
        });
        match copied.await {
            // Deleted meanwhile.
            Ok(_) | Err(StoreError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Creates a folder with the properties of another one, without what it contains. A store
    /// without empty folders has it as soon as there is an object in it. The condition is that of
    /// `to`: none, or that it does not exist.
    pub(in crate::files) async fn copy_folder(
        &self,
        from: &Key,
        to: &Key,
        condition: &Condition,
    ) -> Result<(), StoreError> {
        match self.objects.store.create_folder(to).await {
            Ok(false) if *condition == Condition::Absent => {
                return Err(StoreError::PreconditionFailed);
            }
            Ok(_) => {}
            Err(StoreError::Unsupported) => return Ok(()),
            Err(error) => return Err(error),
        }
        let properties = self.objects.store.properties(from).await?;
        match &properties[..] {
            [] => Ok(()),
            properties => {
                self.objects
                    .store
                    .replace_properties(to, b"", properties)
                    .await
            }
        }
    }
}
