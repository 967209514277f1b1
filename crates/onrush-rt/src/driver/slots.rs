//! The table of a driver's streams. Its slots are reused, each with a generation, so that ids of
//! closed streams and events for them are recognised as stale.
//!
//! Does not depend on what a driver stores with a stream. `bench/gate`, which runs the simulator
//! only, attributes the instructions of this file to it.

use super::StreamId;
use rustix::fd::{AsFd, BorrowedFd};
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// A slot. It dereferences to what the driver stores with the stream.
#[derive(Debug)]
pub(super) struct Slot<S, T> {
    /// `None` while the slot is free.
    pub(super) socket: Option<S>,
    /// The generation of the stream, or of the next one while the slot is free.
    pub(super) generation: u32,
    pub(super) state: T,
}

/// Slots by index, for sockets of type `S`. Generations count to `GENERATION_MASK`, one less than a
/// power of two, and start again at 0.
#[derive(Debug)]
pub(super) struct Slots<S, T, const GENERATION_MASK: u32> {
    slots: Vec<Slot<S, T>>,
    /// The indexes of free slots; the last is used next.
    free: Vec<u32>,
}

impl<S, T, const GENERATION_MASK: u32> Slots<S, T, GENERATION_MASK> {
    /// An empty table.
    pub(super) const fn new() -> Self {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The number of slots, used or free.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Puts a stream into a free slot. `state` is called with the state of the slot's previous
    /// stream, if it had one.
    pub(super) fn insert(&mut self, socket: S, state: impl FnOnce(Option<&T>) -> T) -> StreamId {
        let Some(index) = self.free.pop() else {
            let (index, generation) = (self.slots.len() as u32, 0);
            self.slots.push(Slot {
                socket: Some(socket),
                generation,
                state: state(None),
            });
            return StreamId { index, generation };
        };
        let slot = &mut self[index];
        slot.state = state(Some(&slot.state));
        slot.socket = Some(socket);
        let generation = slot.generation;
        StreamId { index, generation }
    }

    /// The slot of an open stream; `None` when the id is stale.
    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Slot<S, T>> {
        let slot = self.slots.get_mut(id.index as usize)?;
        (slot.generation == id.generation && slot.socket.is_some()).then_some(slot)
    }

    /// The socket of an open stream; `None` when the id is stale.
    #[inline]
    pub(super) fn socket(&self, id: StreamId) -> Option<&S> {
        let slot = self.slots.get(id.index as usize)?;
        let fits = slot.generation == id.generation;
        slot.socket.as_ref().filter(|_| fits)
    }

    /// All slots, used or free, in the order of their indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S, T>> {
        self.slots.iter()
    }

    /// Frees the slot of a stream and returns its socket; `None` when the id is stale. The state
    /// stays until the slot is used again.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<S> {
        let slot = self.get_mut(id)?;
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        let socket = slot.socket.take();
        self.free.push(id.index);
        socket
    }

    /// Takes the sockets of all streams. The table must not be used for new ones after this.
    pub(super) fn take_sockets(&mut self) -> impl Iterator<Item = S> {
        self.slots.iter_mut().filter_map(|slot| slot.socket.take())
    }
}

impl<S: AsFd, T, const GENERATION_MASK: u32> Slots<S, T, GENERATION_MASK> {
    /// The descriptor of an open stream; `None` when the id is stale.
    #[inline]
    pub(super) fn descriptor(&self, id: StreamId) -> Option<BorrowedFd<'_>> {
        self.socket(id).map(AsFd::as_fd)
    }
}

/// The slot at an index that was in use before, whether or not it is free now.
impl<S, T, const GENERATION_MASK: u32> Index<u32> for Slots<S, T, GENERATION_MASK> {
    type Output = Slot<S, T>;

    #[inline]
    fn index(&self, index: u32) -> &Slot<S, T> {
        &self.slots[index as usize]
    }
}

impl<S, T, const GENERATION_MASK: u32> IndexMut<u32> for Slots<S, T, GENERATION_MASK> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Slot<S, T> {
        &mut self.slots[index as usize]
    }
}

impl<S, T> Deref for Slot<S, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<S, T> DerefMut for Slot<S, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;

    type Three = Slots<OwnedFd, &'static str, 3>;

    fn socket() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn an_id_is_stale_once_its_stream_is_removed() {
        let mut slots = Three::new();
        let (a, b) = (
            slots.insert(socket(), |_| "a"),
            slots.insert(socket(), |_| "b"),
        );
        assert_ne!(a.index, b.index);
        assert!(slots.remove(a).is_some());
        assert!(slots.remove(a).is_none() && slots.get_mut(a).is_none());
        let c = slots.insert(socket(), |before| {
            assert_eq!(before, Some(&"a"));
            "c"
        });
        assert_eq!((c.index, slots.len()), (a.index, 2), "the slot is reused");
        assert!(slots.get_mut(a).is_none() && slots.descriptor(a).is_none());
        assert_eq!(slots.get_mut(c).map(|slot| **slot), Some("c"));
        assert_eq!(slots.get_mut(b).map(|slot| **slot), Some("b"));
        assert!(slots.descriptor(b).is_some() && slots.descriptor(c).is_some());
    }

    #[test]
    fn generations_start_again_after_the_mask() {
        let mut slots = Three::new();
        for generation in [0, 1, 2, 3, 0] {
            let id = slots.insert(socket(), |_| "");
            let index = 0;
            assert_eq!(id, StreamId { index, generation });
            assert!(slots.remove(id).is_some());
        }
    }

    #[test]
    fn generations_of_32_bits_start_again() {
        let mut slots = Slots::<(), (), { u32::MAX }>::new();
        let first = slots.insert((), |_| ());
        slots[first.index].generation = u32::MAX;
        let generation = u32::MAX;
        let last = StreamId {
            generation,
            ..first
        };
        assert!(slots.socket(first).is_none() && slots.remove(last).is_some());
        assert_eq!(slots.insert((), |_| ()), first);
        assert!(slots.socket(last).is_none() && slots.socket(first).is_some());
    }

    #[test]
    fn without_sockets_every_id_is_stale() {
        let mut slots = Three::new();
        let ids = [(); 3].map(|()| slots.insert(socket(), |_| ""));
        assert!(slots.remove(ids[1]).is_some());
        assert_eq!(slots.take_sockets().count(), 2);
        assert!(ids.iter().all(|&id| slots.get_mut(id).is_none()));
    }
}
