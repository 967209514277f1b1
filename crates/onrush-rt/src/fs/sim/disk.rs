//! The tree of the simulated file system, in two states: as its users see it, and as the disk holds
//! it.
//!
//! This module does not depend on handles, operation numbers or injected faults.

use super::change::{Change, EntryChange, Keep};
use super::{Random, errno};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem;

/// The number of recently unnamed inodes that are considered for reuse.
const REUSE_CANDIDATES: usize = 4;

/// Symbolic links followed in one lookup, at most, like the kernel's limit.
const LINKS_MAX: usize = 40;

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) nodes: BTreeMap<u64, Node>,
    root: u64,
    /// Names are Unicode; other bytes are none, and fail with this.
    pub(super) unicode_names: Option<i32>,
    next_inode: u64,
    /// Inodes that lost a name, the latest last; their numbers may be free for reuse, as on disks.
    dropped: Vec<u64>,
    /// Numbers the changes of all directories in order of time.
    next_change: u64,
    /// Changes of directories reach the disk in order of time, as those in a journal do. Each
    /// mount has its own journal.
    pub(super) is_journaled: bool,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    /// The mount that it belongs to, as its directory does.
    pub(super) mount: u64,
    pub(super) modified_ns: i64,
    /// The time of the last change of content or properties.
    pub(super) changed_ns: i64,
    durable_modified_ns: i64,
    /// Mode, user and group, as the disk holds them.
    durable_rights: (u32, u32, u32),
    /// Extended attributes by name.
    pub(super) attributes: Attributes,
    durable_attributes: Attributes,
}

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
pub(super) enum Body {
    File(Content),
    Dir(Entries),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) now: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last `fsync`, in order.
    pending: Vec<Change>,
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) now: BTreeMap<Vec<u8>, u64>,
    durable: BTreeMap<Vec<u8>, u64>,
    pending: Vec<EntryChange>,
    /// Removed while open: nothing can be created in it any more.
    pub(super) removed: bool,
}

/// The result of a path lookup.
pub(super) struct FoundNode {
    /// The directory of the last segment, and that segment; `None` for the start directory itself.
    pub(super) entry: Option<(u64, Vec<u8>)>,
    /// The inode there.
    pub(super) inode: Option<u64>,
}

impl Disk {
    pub(super) fn new(root: u64) -> Disk {
        let mut nodes = BTreeMap::new();
        nodes.insert(root, Node::new(Body::Dir(Entries::default()), 0o755, 0));
        Disk {
            nodes,
            root,
            unicode_names: None,
            next_inode: root + 1,
            dropped: Vec::new(),
            next_change: 0,
            is_journaled: false,
        }
    }

    /// Adds a node without a name; `open` has the inodes with open handles. Like real file systems,
    /// it prefers the number of a deleted file.
    pub(super) fn add_node(&mut self, node: Node, open: &HashMap<u64, usize>) -> u64 {
        let free = |&inode: &u64| !open.contains_key(&inode) && !self.named(inode);
        let from = self.dropped.len().saturating_sub(REUSE_CANDIDATES);
        let found = self.dropped[from..].iter().rposition(free);
        let inode = match found {
            Some(at) => self.dropped.remove(from + at),
            None => {
                self.next_inode += 1;
                self.next_inode - 1
            }
        };
        self.dropped.retain(|&dropped| dropped != inode);
        self.nodes.insert(inode, node);
        inode
    }

    /// Whether any directory has a name for the inode, as users see it or as the disk holds it.
    fn named(&self, inode: u64) -> bool {
        self.nodes.values().any(|node| match &node.body {
            Body::Dir(entries) => {
                let pending = entries
                    .pending
                    .iter()
                    .any(|change| change.to == Some(inode));
                let mut all = entries.now.values().chain(entries.durable.values());
                pending || all.any(|&named| named == inode)
            }
            _ => false,
        })
    }

    pub(super) fn node(&mut self, inode: u64) -> io::Result<&mut Node> {
        self.nodes.get_mut(&inode).ok_or_else(|| errno(libc::EIO))
    }

    pub(super) fn dir(&self, inode: u64) -> io::Result<&Entries> {
        match self.nodes.get(&inode).map(|node| &node.body) {
            Some(Body::Dir(entries)) => Ok(entries),
            _ => Err(errno(libc::ENOTDIR)),
        }
    }

    fn dir_mut(&mut self, inode: u64) -> io::Result<&mut Entries> {
        match self.nodes.get_mut(&inode).map(|node| &mut node.body) {
            Some(Body::Dir(entries)) => Ok(entries),
            _ => Err(errno(libc::ENOTDIR)),
        }
    }

    pub(super) fn file(&mut self, inode: u64) -> io::Result<&mut Content> {
        match self.nodes.get_mut(&inode).map(|node| &mut node.body) {
            Some(Body::File(content)) => Ok(content),
            Some(Body::Dir(_)) => Err(errno(libc::EISDIR)),
            _ => Err(errno(libc::EINVAL)),
        }
    }

    /// Changes an entry as users see it; [`Disk::sync_dir`] writes it to the disk.
    pub(super) fn set_entry(&mut self, dir: u64, name: &[u8], to: Option<u64>) -> io::Result<()> {
        self.set_entries([(dir, name, to)])
    }

    /// Changes entries together: their directories, names and targets.
    pub(super) fn set_entries<const N: usize>(
        &mut self,
        changes: [(u64, &[u8], Option<u64>); N],
    ) -> io::Result<()> {
        let order = self.next_change;
        self.next_change += 1;
        changes
            .into_iter()
            .try_for_each(|(dir, name, to)| self.change_entry(order, dir, name, to))
    }

    fn change_entry(
        &mut self,
        order: u64,
        dir: u64,
        name: &[u8],
        to: Option<u64>,
    ) -> io::Result<()> {
        let entries = self.dir_mut(dir)?;
        if entries.removed {
            return Err(errno(libc::ENOENT));
        }
        let before = match to {
            Some(inode) => entries.now.insert(name.into(), inode),
            None => entries.now.remove(name),
        };
        entries.pending.push(EntryChange {
            order,
            name: name.into(),
            to,
        });
        self.dropped.extend(before);
        Ok(())
    }

    pub(super) fn mark_removed(&mut self, dir: u64) -> io::Result<()> {
        self.dir_mut(dir)?.removed = true;
        Ok(())
    }

    /// Test set-up: the node is durable from the start.
    pub(super) fn add_durable(&mut self, root: u64, path: &[u8], body: Body) -> io::Result<()> {
        let found = self.resolve(root, path, false)?;
        let (Some((dir, name)), None) = (found.entry, found.inode) else {
            return Err(errno(libc::EEXIST));
        };
        let inode = self.add_node(Node::new(body, 0o777, 0), &HashMap::new());
        let entries = self.dir_mut(dir)?;
        entries.now.insert(name.clone(), inode);
        entries.durable.insert(name, inode);
        Ok(())
    }

    /// Follows `path` beneath `start`, as `RESOLVE_BENEATH` does.
    pub(super) fn resolve(
        &self,
        start: u64,
        path: &[u8],
        follow_last: bool,
    ) -> io::Result<FoundNode> {
        if path.is_empty() {
            return Err(errno(libc::ENOENT));
        }
        let mut stack = vec![start];
        let mut todo = VecDeque::new();
        let mut links = 0;
        push_front(&mut todo, path)?;
        while let Some(segment) = todo.pop_front() {
            self.check_name(&segment)?;
            if segment == b".." {
                stack.pop();
                if stack.is_empty() {
                    return Err(errno(libc::EXDEV));
                }
                continue;
            }
            let dir = stack[stack.len() - 1];
            let Some(&inode) = self.dir(dir)?.now.get(&segment) else {
                if todo.is_empty() {
                    return Ok(FoundNode {
                        entry: Some((dir, segment)),
                        inode: None,
                    });
                }
                return Err(errno(libc::ENOENT));
            };
            match &self.nodes[&inode].body {
                Body::Symlink(target) if follow_last || !todo.is_empty() => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(errno(libc::ELOOP));
                    }
                    push_front(&mut todo, target)?;
                }
                Body::Dir(_) if !todo.is_empty() => stack.push(inode),
                _ if todo.is_empty() => {
                    return Ok(FoundNode {
                        entry: Some((dir, segment)),
                        inode: Some(inode),
                    });
                }
                _ => return Err(errno(libc::ENOTDIR)),
            }
        }
        Ok(FoundNode {
            entry: None,
            inode: stack.last().copied(),
        })
    }

    pub(super) fn check_name(&self, name: &[u8]) -> io::Result<()> {
        match self.unicode_names {
            Some(failure) if str::from_utf8(name).is_err() => Err(errno(failure)),
            _ => Ok(()),
        }
    }

    /// Writes a file's changes to the disk; its times only with `times_too`.
    pub(super) fn sync_file(&mut self, inode: u64, times_too: bool) -> io::Result<()> {
        let node = self.node(inode)?;
        if let Body::File(content) = &mut node.body {
            for change in mem::take(&mut content.pending) {
                match change {
                    Change::SetModified(ns) if times_too => node.durable_modified_ns = ns,
                    change => change.apply(&mut content.durable),
                }
            }
        }
        if times_too {
            node.durable_modified_ns = node.modified_ns;
            node.sync_properties();
        }
        Ok(())
    }

    /// Models what Linux does when pages cannot be written: they count as clean, and are lost when
    /// the cache drops them, which here happens at once. The size stays.
    pub(super) fn fail_sync_file(&mut self, inode: u64) -> io::Result<()> {
        let content = self.file(inode)?;
        content.pending.clear();
        let len = content.now.len();
        content.now.clone_from(&content.durable);
        content.now.resize(len, 0);
        Ok(())
    }

    /// An `fsync` of which only a part completes.
    pub(super) fn tear_sync_file(&mut self, inode: u64, random: &mut Random) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.resolve_pending(Keep::Some, random);
        }
    }

    pub(super) fn sync_dir(&mut self, inode: u64) -> io::Result<()> {
        self.for_each_dir(inode, |entries| {
            for change in mem::take(&mut entries.pending) {
                change.apply(&mut entries.durable);
            }
        });
        self.node(inode)?.sync_properties();
        Ok(())
    }

    /// Models the kernel's background write-back: all pending changes are written to the disk.
    pub(super) fn sync_all(&mut self) -> io::Result<()> {
        let inodes: Vec<u64> = self.nodes.keys().copied().collect();
        for inode in inodes {
            match self.dir(inode) {
                Ok(_) => self.sync_dir(inode)?,
                Err(_) => self.sync_file(inode, true)?,
            }
        }
        Ok(())
    }

    fn keep_of_torn(&self, random: &mut Random) -> Keep {
        match self.is_journaled {
            true => Keep::Until(random.up_to(self.next_change as usize) as u64),
            false => Keep::Some,
        }
    }

    /// The changes are never written to the disk, though users still see them.
    pub(super) fn fail_sync_dir(&mut self, inode: u64) -> io::Result<()> {
        self.for_each_dir(inode, |entries| entries.pending.clear());
        Ok(())
    }

    pub(super) fn tear_sync_dir(&mut self, inode: u64, random: &mut Random) {
        let keep = self.keep_of_torn(random);
        self.for_each_dir(inode, |entries| entries.resolve_pending(keep, random));
    }

    /// Calls `each` for the directories whose changes a sync of `inode` concerns: this one, or all
    /// of its mount if there is a journal.
    fn for_each_dir(&mut self, inode: u64, mut each: impl FnMut(&mut Entries)) {
        let mount = self.nodes.get(&inode).map(|node| node.mount);
        for (&other, node) in &mut self.nodes {
            let is_joined = self.is_journaled && Some(node.mount) == mount;
            if let Body::Dir(entries) = &mut node.body
                && (is_joined || other == inode)
            {
                each(entries);
            }
        }
    }

    /// A power cut: users now see what the disk kept.
    pub(super) fn forget(&mut self, random: &mut Random) {
        let (is_journaled, changes) = (self.is_journaled, self.next_change as usize);
        let choose = |random: &mut Random| match random.up_to(if is_journaled { 2 } else { 4 }) {
            0 => Keep::Nothing,
            1 => Keep::All,
            2 => Keep::Until(random.up_to(changes) as u64),
            _ => Keep::Some,
        };
        // Mounts are different disks.
        let mut keeps = BTreeMap::new();
        for node in self.nodes.values_mut() {
            let keep = *keeps.entry(node.mount).or_insert_with(|| choose(random));
            node.resolve_pending(keep, random);
        }
        self.drop_unreachable();
    }

    fn drop_unreachable(&mut self) {
        let mut reached = BTreeSet::new();
        let mut todo = vec![self.root];
        while let Some(inode) = todo.pop() {
            if !reached.insert(inode) {
                continue;
            }
            if let Some(Body::Dir(entries)) = self.nodes.get(&inode).map(|node| &node.body) {
                todo.extend(entries.now.values());
            }
        }
        self.nodes.retain(|inode, _| reached.contains(inode));
    }
}

impl Node {
    pub(super) fn new(body: Body, mode: u32, now_ns: i64) -> Node {
        Node {
            body,
            mode,
            user: 0,
            group: 0,
            mount: 1,
            modified_ns: now_ns,
            changed_ns: now_ns,
            durable_modified_ns: now_ns,
            durable_rights: (mode, 0, 0),
            attributes: Attributes::new(),
            durable_attributes: Attributes::new(),
        }
    }

    /// Sets an attribute as users see it; the disk learns of it by [`Disk::sync_file`].
    pub(super) fn set_attribute(&mut self, name: &[u8], value: &[u8]) {
        self.attributes.insert(name.into(), value.into());
    }

    fn rights(&self) -> (u32, u32, u32) {
        (self.mode, self.user, self.group)
    }

    /// Writes rights and attributes to the disk.
    fn sync_properties(&mut self) {
        self.durable_rights = self.rights();
        self.durable_attributes.clone_from(&self.attributes);
    }

    /// Moves the pending changes that `keep` selects to the disk, and drops the rest.
    fn resolve_pending(&mut self, keep: Keep, random: &mut Random) {
        match &mut self.body {
            Body::Dir(entries) => entries.resolve_pending(keep, random),
            Body::File(content) => {
                for change in mem::take(&mut content.pending) {
                    let kept = match keep {
                        Keep::Nothing => false,
                        Keep::All => true,
                        // The numbers order changes of directories; data has none.
                        Keep::Until(_) => random.coin(),
                        Keep::Some => {
                            change.apply_some(&mut content.durable, random);
                            continue;
                        }
                    };
                    if let (true, Change::SetModified(ns)) = (kept, &change) {
                        self.durable_modified_ns = *ns;
                    }
                    if kept {
                        change.apply(&mut content.durable);
                    }
                }
                content.now.clone_from(&content.durable);
            }
            Body::Symlink(_) | Body::Special => {}
        }
        self.modified_ns = self.durable_modified_ns;
        // Each attribute that was not synced is there or not, for itself.
        for (name, value) in &self.attributes {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::All => true,
                Keep::Until(_) | Keep::Some => random.coin(),
            };
            if kept {
                self.durable_attributes.insert(name.clone(), value.clone());
            }
        }
        self.attributes.clone_from(&self.durable_attributes);
        if self.rights() != self.durable_rights {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::All => true,
                Keep::Until(_) | Keep::Some => random.coin(),
            };
            if kept {
                self.durable_rights = self.rights();
            }
            (self.mode, self.user, self.group) = self.durable_rights;
        }
    }
}

impl Content {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let change = Change::Write(offset, bytes.into());
        change.apply(&mut self.now);
        self.pending.push(change);
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.now.resize(len, 0);
        self.pending.push(Change::SetLen(len));
    }

    pub(super) fn set_modified(&mut self, modified_ns: i64) {
        self.pending.push(Change::SetModified(modified_ns));
    }
}

impl Entries {
    fn resolve_pending(&mut self, keep: Keep, random: &mut Random) {
        // Changes of one name keep their order: any prefix of them survives, separately for each
        // name.
        let mut stopped = BTreeSet::new();
        for change in mem::take(&mut self.pending) {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::All => true,
                Keep::Until(moment) => change.order < moment,
                Keep::Some => !stopped.contains(&change.name) && random.coin(),
            };
            if kept {
                change.apply(&mut self.durable);
            } else {
                stopped.insert(change.name);
            }
        }
        self.now.clone_from(&self.durable);
        self.removed = false;
    }
}

/// Prepends the segments of `path` to those still to be looked up.
fn push_front(todo: &mut VecDeque<Vec<u8>>, path: &[u8]) -> io::Result<()> {
    if path.first() == Some(&b'/') {
        return Err(errno(libc::EXDEV));
    }
    if path.contains(&0) {
        return Err(errno(libc::EINVAL));
    }
    for segment in path.split(|&b| b == b'/').rev() {
        if !segment.is_empty() && segment != b"." {
            if segment.len() > 255 {
                return Err(errno(libc::ENAMETOOLONG));
            }
            todo.push_front(segment.into());
        }
    }
    Ok(())
}
