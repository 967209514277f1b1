//! Tests of blocks, views, and the budget that they share.

use super::*;

fn pool(budget_bytes: usize) -> BufferPool {
    BufferPool::new(64, 4, Budget::new(budget_bytes))
}

#[test]
fn a_dropped_block_is_reused_last_in_first_out() {
    let pool = pool(1 << 20);
    let first = pool.take().unwrap();
    let second = pool.take().unwrap();
    let address = second.as_ptr();
    drop(first);
    drop(second);
    assert_eq!(pool.take().unwrap().as_ptr(), address);
}

#[test]
fn views_share_and_keep_their_block() {
    let pool = pool(1 << 20);
    let mut block = pool.take().unwrap();
    assert_eq!(block.extend(b"hello world"), 11);
    let whole = block.into_buf();
    let world = whole.slice(6..11);
    drop(whole);
    assert_eq!((&*world, world.block_bytes()), (&b"world"[..], 64));
    let block = world.try_into_block().unwrap();
    assert_eq!(block.filled(), b"world");
}

#[test]
fn a_shared_view_is_not_writable() {
    let pool = pool(1 << 20);
    let view = pool.take().unwrap().into_buf();
    let other = view.clone();
    assert!(view.try_into_block().is_err());
    drop(other);
}

#[test]
fn the_budget_bounds_blocks_and_is_given_back() {
    let pool = pool(2 * (HEADER_BYTES + 64));
    let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
    assert!(pool.take().is_none());
    drop(a);
    assert!(pool.take().is_some());
    drop(b);
    let budget = pool.budget().clone();
    drop(pool);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn unused_blocks_make_room_for_another_size() {
    let pool = pool(4 * (HEADER_BYTES + 64));
    let blocks: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(
        (blocks.len(), pool.held_bytes()),
        (4, 4 * (HEADER_BYTES + 64))
    );
    drop(blocks);
    assert_eq!(pool.held_bytes(), 0, "unused blocks are not held");
    let odd = pool
        .take_exact(200)
        .expect("the unused blocks are given back");
    assert_eq!(pool.held_bytes(), HEADER_BYTES + 200);
    drop(odd);
}

#[test]
fn one_block_at_most_exceeds_the_budget() {
    let pool = pool(2 * (HEADER_BYTES + 64) + 1);
    let two = (pool.take().unwrap(), pool.take().unwrap());
    assert!(pool.take().is_none());
    let last = pool.take_last().expect("one more");
    assert!(pool.take_last().is_none());
    assert!(pool.take().is_none() && pool.take_exact(1).is_none());
    drop(last);
    assert!(pool.take().is_none(), "it is not kept for reuse");
    assert!(pool.take_last().is_some());
    drop(two);
    let budget = pool.budget().clone();
    drop(pool);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn no_size_and_no_range_reaches_beyond_a_block() {
    let pool = pool(usize::MAX);
    for bytes in [1 << 32, usize::MAX - HEADER_BYTES, usize::MAX] {
        assert!(pool.take_sized(bytes).is_none() && pool.take_exact(bytes).is_none());
    }
    let mut empty = pool.take_exact(0).unwrap();
    assert_eq!(
        (empty.capacity(), empty.extend(b"x"), empty.spare().len()),
        (0, 0, 0)
    );
    assert!(empty.into_buf().is_empty());
    let mut block = pool.take().unwrap();
    block.extend(b"hello");
    let panics = |act: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
    };
    assert!(panics(&mut || block.advance(60)) && panics(&mut || block.advance(usize::MAX)));
    let mut view = block.into_buf();
    assert!(panics(&mut || drop(view.slice(2..6))));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 3..2;
    assert!(panics(&mut || drop(view.slice(reversed.clone()))));
    assert!(panics(&mut || view.advance(6)) && panics(&mut || view.advance(usize::MAX)));
    view.truncate(usize::MAX);
    assert_eq!(&*view, b"hello");
    assert_eq!(&*view.slice(5..5), b"");
}

/// Blocks may outlive every other handle to their pool, and the pool the owner of its budget.
#[test]
fn blocks_outlive_their_pool() {
    let pool = pool(1 << 20);
    let budget = pool.budget().clone();
    let kept = pool.take().unwrap();
    let mut block = pool.take().unwrap();
    block.extend(b"kept");
    let (view, other) = (block.into_buf(), pool.take_exact(7).unwrap());
    drop(pool);
    let again = view.slice(1..3);
    drop(view);
    assert_eq!(&*again, b"ep");
    drop((kept, other, again));
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn odd_sizes_are_not_kept() {
    let pool = pool(1 << 20);
    let large = pool.take_sized(1000).unwrap();
    assert_eq!(large.capacity(), 1000);
    drop(large);
    assert_eq!(pool.budget().used_bytes(), 0);
}
