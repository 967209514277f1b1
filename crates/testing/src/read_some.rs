//! What a client receives.

use std::io::{self, Read};

/// [`Read::read`], repeated when a signal interrupts it. A socket with a time limit returns `EINTR`
/// for each signal, also for one that a test program does not expect.
pub fn read_some(stream: &mut (impl Read + ?Sized), into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
