//! A hierarchical timing wheel with a resolution of one millisecond. It holds all timers of a
//! worker.
//!
//! There are six levels of 64 slots; level `n` has slots of `64^n` ms, so the wheel spans two
//! years. Scheduling and cancelling are O(1); an entry moves down at most five times in its life.
//! Entries are linked and share one slab, so an idle wheel needs no memory per slot.
//!
//! The payloads are opaque, and the caller supplies the time.

use std::num::NonZeroU32;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const NONE: u32 = u32::MAX;
/// Deadlines beyond the wheel's span wait in its last slot and are then scheduled again.
const SPAN_MS: u64 = 1 << (SLOT_BITS * LEVELS as u32);

/// Identifies one scheduled entry; stale after the entry fired or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId {
    index: u32,
    /// Never 0, so an `Option` of an id takes no more memory.
    generation: NonZeroU32,
}

#[derive(Debug)]
struct TimerEntry {
    generation: NonZeroU32,
    previous: u32,
    next: u32,
    /// `level * SLOTS + slot`, or `NONE` while the entry is free.
    place: u32,
    deadline_ms: u64,
    payload: u64,
}

/// The wheel. Times are milliseconds since the owner's epoch.
///
/// # Examples
/// ```
/// use onrush_rt::timer::Wheel;
///
/// let mut wheel = Wheel::new(1_000);
/// let cancelled = wheel.schedule(1_010, 1);
/// wheel.schedule(1_020, 2);
/// assert!(wheel.cancel(cancelled));
/// assert_eq!(wheel.expire(1_019), None);
/// assert_eq!(wheel.expire(1_020), Some(2));
/// assert!(wheel.is_empty());
/// ```
#[derive(Debug)]
pub struct Wheel {
    now_ms: u64,
    entries: Vec<TimerEntry>,
    free: u32,
    heads: [u32; LEVELS * SLOTS],
    /// One bit per slot that is not empty.
    occupied: [u64; LEVELS],
    count: usize,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel::new(0)
    }
}

impl Wheel {
    /// An empty wheel at time `now_ms`.
    pub fn new(now_ms: u64) -> Wheel {
        Wheel {
            now_ms,
            entries: Vec::new(),
            free: NONE,
            heads: [NONE; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            count: 0,
        }
    }

    /// The number of scheduled entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is scheduled.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Schedules `payload` for `deadline_ms`. A deadline in the past fires at the next
    /// [`Wheel::expire`].
    pub fn schedule(&mut self, deadline_ms: u64, payload: u64) -> TimerId {
        let index = self.allocate();
        let entry = &mut self.entries[index as usize];
        entry.deadline_ms = deadline_ms;
        entry.payload = payload;
        let generation = entry.generation;
        self.link(index);
        self.count += 1;
        TimerId { index, generation }
    }

    /// Removes an entry; `false` if it fired or was cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> bool {
        match self.entries.get(id.index as usize) {
            Some(entry) if entry.generation == id.generation && entry.place != NONE => {
                self.unlink(id.index);
                self.release(id.index);
                true
            }
            _ => false,
        }
    }

    /// When [`Wheel::expire`] may next have work, in ms; never later than the next deadline.
    pub fn next_ms(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| self.next_slot_ms(level))
            .min()
    }

    /// Advances to `now_ms` and returns one expired entry, or `None` when there are no more. Call
    /// it until it returns `None`.
    pub fn expire(&mut self, now_ms: u64) -> Option<u64> {
        loop {
            let due = self.next_ms().filter(|&due| due <= now_ms);
            let Some(due) = due else {
                self.now_ms = self.now_ms.max(now_ms);
                return None;
            };
            self.now_ms = self.now_ms.max(due);
            // The highest level with a slot at this time first: its entries move down or fire.
            let level = (0..LEVELS)
                .rev()
                .find(|&l| self.next_slot_ms(l) == Some(due));
            let level = level.expect("some level gave this time");
            let slot = (due >> (SLOT_BITS * level as u32)) as usize % SLOTS;
            let index = self.heads[level * SLOTS + slot];
            self.unlink(index);
            if self.entries[index as usize].deadline_ms <= self.now_ms {
                let payload = self.entries[index as usize].payload;
                self.release(index);
                return Some(payload);
            }
            self.link(index);
        }
    }

    /// The start time of the first occupied slot of a level.
    fn next_slot_ms(&self, level: usize) -> Option<u64> {
        if self.occupied[level] == 0 {
            return None;
        }
        let shift = SLOT_BITS * level as u32;
        let current = self.now_ms >> shift;
        let ahead = self.occupied[level].rotate_right((current % SLOTS as u64) as u32);
        let slot_start = (current + u64::from(ahead.trailing_zeros())) << shift;
        Some(slot_start.max(self.now_ms & !((1 << shift) - 1)))
    }

    fn place(&self, deadline_ms: u64) -> usize {
        let deadline = deadline_ms.clamp(self.now_ms, self.now_ms + SPAN_MS - SPAN_MS / 64 - 1);
        // The level is the position of the highest digit (base 64) in which now and the deadline
        // differ.
        let differing = (self.now_ms ^ deadline) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (deadline >> (SLOT_BITS * level)) as usize % SLOTS;
        level as usize * SLOTS + slot
    }

    fn link(&mut self, index: u32) {
        let place = self.place(self.entries[index as usize].deadline_ms);
        let head = std::mem::replace(&mut self.heads[place], index);
        if head != NONE {
            self.entries[head as usize].previous = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next, entry.place) = (NONE, head, place as u32);
        self.occupied[place / SLOTS] |= 1 << (place % SLOTS);
    }

    fn unlink(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        let (previous, next, place) = (entry.previous, entry.next, entry.place as usize);
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NONE {
            self.entries[previous as usize].next = next;
        } else {
            self.heads[place] = next;
            if next == NONE {
                self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
            }
        }
        self.entries[index as usize].place = NONE;
    }

    fn allocate(&mut self) -> u32 {
        if self.free != NONE {
            let index = self.free;
            self.free = self.entries[index as usize].next;
            return index;
        }
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 timers");
        self.entries.push(TimerEntry {
            generation: NonZeroU32::MIN,
            previous: NONE,
            next: NONE,
            place: NONE,
            deadline_ms: 0,
            payload: 0,
        });
        index
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        entry.next = std::mem::replace(&mut self.free, index);
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(wheel: &mut Wheel, now_ms: u64) -> Vec<u64> {
        std::iter::from_fn(|| wheel.expire(now_ms)).collect()
    }

    #[test]
    fn fires_at_its_millisecond_and_not_before() {
        for deadline in [
            0,
            1,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            300_000,
            86_400_000,
            1 << 34,
        ] {
            let mut wheel = Wheel::new(0);
            wheel.schedule(deadline, 7);
            if deadline > 0 {
                assert_eq!(drain(&mut wheel, deadline - 1), [], "{deadline}");
            }
            assert!(wheel.next_ms().unwrap() <= deadline);
            assert_eq!(drain(&mut wheel, deadline), [7], "{deadline}");
            assert!(wheel.is_empty());
        }
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        // A small generator is enough: the point is many different distances and steps.
        let mut seed = 42u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut wheel = Wheel::new(1_000_003);
        let mut model: Vec<(u64, u64, TimerId)> = Vec::new();
        let mut now = 1_000_003;
        let entries = if cfg!(miri) { 300 } else { 20_000 }; // Miri is slow.
        for payload in 0..entries {
            let reach = 1 << (1 + random(24));
            let deadline = now + random(reach);
            model.push((deadline, payload, wheel.schedule(deadline, payload)));
            if random(3) == 0 {
                let (_, _, id) = model.swap_remove(random(model.len() as u64) as usize);
                assert!(wheel.cancel(id));
                assert!(!wheel.cancel(id));
            }
            if random(4) == 0 {
                now += random(5000);
                let mut fired = drain(&mut wheel, now);
                let mut due: Vec<u64> = model.iter().filter(|e| e.0 <= now).map(|e| e.1).collect();
                model.retain(|e| e.0 > now);
                fired.sort_unstable();
                due.sort_unstable();
                assert_eq!(fired, due);
                assert_eq!(wheel.len(), model.len());
                if let Some(first) = model.iter().map(|e| e.0).min() {
                    assert!(wheel.next_ms().unwrap() <= first);
                }
            }
        }
    }

    #[test]
    fn a_stale_id_cancels_nothing() {
        let mut wheel = Wheel::new(0);
        let old = wheel.schedule(5, 1);
        assert_eq!(drain(&mut wheel, 5), [1]);
        wheel.schedule(9, 2);
        assert!(!wheel.cancel(old));
        assert_eq!(drain(&mut wheel, 9), [2]);
    }
}
