//! The contract of coroutines: where a coroutine may wait, and why safe code cannot guarantee that.
//!
//! Does not depend on coroutines.
#![allow(unsafe_code)]

/// The promise that coroutines wait only where that is sound. Creating a coroutine requires it.
///
/// The value has no size and does nothing at run time. A copy of it is the same promise: code that
/// passes it on also promises for the functions that the receiver runs as coroutines.
/// [`Contract::accept`] says what the promise is.
///
/// Safe code cannot create a coroutine:
///
/// ```compile_fail,E0133
/// use onrush_coroutine::{Contract, Coroutine};
///
/// let coroutine = Coroutine::new(Contract::accept(), || ());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Contract(());

impl Contract {
    /// Accepts the contract, for each coroutine that is created with this value, and for each that
    /// is started by what runs on the stack of such a coroutine
    /// ([`thread::spawn`](super::thread::spawn)).
    ///
    /// # Why
    /// A coroutine that waits leaves its functions on its stack, and its thread does something
    /// else. Meanwhile the thread may run other coroutines, call the same library again, destroy
    /// its thread-locals, or end. The coroutine may also be leaked, so that its functions never
    /// return. Some sound libraries have `unsafe` code that relies on the contrary: a closure that
    /// they call returns or unwinds before the thread does something else. That is true for threads
    /// and for `async` functions. The compiler cannot check it for coroutines.
    ///
    /// # Safety
    /// When a coroutine waits, no function on its stack relies, for its soundness, on the return of
    /// the function that it called before its thread does something else. Functions that wait are
    /// [`wait`](super::wait()), [`try_wait`](super::try_wait), and all functions that use them:
    /// those of the modules of [`coroutine`](super) for sockets, files, channels, locks, joining,
    /// sleeping and yielding, and those that read a request or write a response. Each of them may
    /// suspend the coroutine even if it has nothing to wait for, because the coroutine has used up
    /// its budget.
    ///
    /// So a coroutine does not wait
    ///
    /// 1. **within a borrow of a thread-local**: in the closure of
    ///    [`LocalKey::with`](std::thread::LocalKey::with), `with_borrow` and `with_borrow_mut`, or
    ///    of a library function that lends what a thread-local contains or points to
    ///    (`scoped_tls::ScopedKey::with`). A thread destroys its thread-locals when it ends and in
    ///    `exit(3)`, although the coroutine has not returned. If a destructor of another
    ///    thread-local polls the coroutine then, it uses the destroyed value. If the coroutine has
    ///    lent the value to another thread and is leaked, that thread uses it.
    ///    The same holds for the initializer of a thread-local: if other code initializes the value
    ///    meanwhile and borrows it, the end of the first initializer replaces the borrowed value.
    /// 2. **while a thread-local is set for the duration of a call**: in the closure of a library
    ///    function that sets a pointer, or other state that `unsafe` code relies on, and restores
    ///    the previous one afterwards (`scoped_tls::ScopedKey::set`). Coroutines end in any order.
    ///    The one that ends last may restore a pointer to a value that an earlier one has freed.
    /// 3. **within a scope that lends to other threads** ([`std::thread::scope`],
    ///    `rayon::in_place_scope`), unless everything that it lends is `'static` or owned by local
    ///    variables of the coroutine. A leaked coroutine never returns from the scope, so the other
    ///    threads use what was lent after its owner has dropped it. The stack of a leaked coroutine
    ///    is never freed, so what is owned there stays valid.
    /// 4. **within `exit(3)`**: in the destructor of a thread-local, or in a function registered
    ///    with `atexit(3)`, when the coroutine calls [`std::process::exit`]. The thread would
    ///    continue although its thread-locals are being destroyed, and code that borrows one of
    ///    them further down would use it.
    /// 5. **within a callback of code in another language** that must not be called again
    ///    meanwhile, or must not be unwound: a coroutine that is dropped while it waits is unwound
    ///    from there.
    ///
    /// # What fulfils the contract
    /// Almost all code of handlers does. Only closures and trait methods that a library calls, and
    /// that wait, need attention. Adapters such as iterators, [`std::io::copy`], buffered readers,
    /// formatters and parsers rely on nothing of the kind. A guard that is kept across a wait (of a
    /// lock, a `RefCell`, a span) is sound: safe code may forget guards and drop them in any order,
    /// so no sound library relies on that. It can block other coroutines, or make them panic.
    ///
    /// ```
    /// use onrush_coroutine::{Contract, Coroutine, TcpStream};
    /// use std::{cell::RefCell, io::Write, net::SocketAddr};
    ///
    /// thread_local! {
    ///     static IDLE: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
    /// }
    ///
    /// fn ping(server: SocketAddr) -> std::io::Result<()> {
    ///     let idle = IDLE.with_borrow_mut(Vec::pop); // The borrow ends here.
    ///     let mut stream = match idle {
    ///         Some(stream) => stream,
    ///         None => TcpStream::connect(server)?,
    ///     };
    ///     stream.write_all(b"PING\n")?;
    ///     IDLE.with_borrow_mut(|idle| idle.push(stream));
    ///     Ok(())
    /// }
    ///
    /// # fn start(server: SocketAddr) {
    /// // SAFETY: `ping` waits in `connect` and `write_all`, outside the borrows of `IDLE`.
    /// let contract = unsafe { Contract::accept() };
    /// let coroutine = Coroutine::new(contract, move || ping(server));
    /// # }
    /// ```
    ///
    /// Each of these statements violates it; the number is that of the case:
    ///
    /// ```text
    /// IDLE.with_borrow_mut(|idle| idle[0].write_all(b"PING\n")); // 1
    /// SETTINGS.set(&settings, || sleep(second)); // 2, with scoped-tls
    /// NAME.with(|name| {
    ///     std::thread::scope(|s| {
    ///         s.spawn(|| println!("{name}"));
    ///         sleep(second) // 1 and 3
    ///     })
    /// });
    /// ```
    ///
    /// # What the runtime detects
    /// The runtime detects some violations: it leaks a coroutine instead of unwinding it when its
    /// [`scope`](super::scope()) has ended or the thread is in `exit(3)`, and it panics when a
    /// coroutine is polled outside its scope or waits on a foreign stack. It cannot detect all of
    /// them: case 2 is a pointer in a library that the runtime does not know.
    #[inline]
    #[must_use]
    pub const unsafe fn accept() -> Contract {
        Contract(())
    }
}
