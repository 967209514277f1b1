//! Folds bytes whose CRC-64/NVME is computed, with the instruction `VPCLMULQDQ` of AVX2.
//!
//! A CRC is the remainder of a division of polynomials, so blocks can be replaced by shorter ones
//! that have the same remainder: `x^n` times a block by the block times the remainder of `x^n`.
//! [`fold`] does this until 32 bytes are left. The caller computes the checksum of these, and of
//! the bytes that were too few to be folded, by other means.
//!
//! Libraries have this for AVX-512 and for the 128-bit `PCLMULQDQ`, but not for what is between
//! them, such as Zen 3, where it is twice as fast as the latter.

#![allow(unsafe_code)]

/// The fewest bytes that are folded. Below, the other means are as fast.
const BYTES_MIN: usize = 2 * STEP_BYTES;
/// The bytes of a step, in registers of 32 bytes each. As many as hide the latency of a product.
const STEP_BYTES: usize = 256;

/// The beginning of some bytes, folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// Bytes with the same CRC, if it begins with a state that is zero.
    pub bytes: [u8; 32],
    /// The number of bytes that they replace. The CRC goes on with the bytes that follow.
    pub replaced: usize,
}

/// Folds the beginning of `bytes`. `state`: the CRC of the bytes before, as it is in the middle of
/// a computation, without the final inversion; all ones if there are none.
///
/// Returns `None` if `bytes` are few, if the processor has no `VPCLMULQDQ`, or if it has AVX-512,
/// for which there are faster means.
pub fn fold(state: u64, bytes: &[u8]) -> Option<Folded> {
    match has_faster_means() {
        true => None,
        false => fold_if_supported(state, bytes),
    }
}

/// As [`fold`], also if there are faster means.
fn fold_if_supported(state: u64, bytes: &[u8]) -> Option<Folded> {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= BYTES_MIN && is_supported() {
        // SAFETY: the processor has the instructions.
        return unsafe { avx2::fold(state, bytes) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (state, bytes);
    None
}

/// Whether the processor has the instructions of [`avx2`].
#[cfg(target_arch = "x86_64")]
fn is_supported() -> bool {
    is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_supported() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn has_faster_means() -> bool {
    is_x86_feature_detected!("avx512vl")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_faster_means() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Folded, STEP_BYTES};
    use std::arch::x86_64::{
        __m256i, _mm256_clmulepi64_epi128, _mm256_loadu_si256, _mm256_set_epi64x,
        _mm256_storeu_si256, _mm256_xor_si256,
    };
    use std::array::from_fn;

    const REGISTER_BYTES: usize = size_of::<__m256i>();
    const REGISTERS: usize = STEP_BYTES / REGISTER_BYTES;

    /// The polynomial of CRC-64/NVME without its highest power.
    const POLYNOMIAL: u64 = 0xad93_d235_94c9_3659;

    /// The remainder of `x^n`. The CRC is defined on reflected bits.
    const fn remainder(n: usize) -> i64 {
        let mut value: u64 = 1;
        let mut at = 0;
        while at < n {
            let has_carry = value >> 63 != 0;
            value <<= 1;
            if has_carry {
                value ^= POLYNOMIAL;
            }
            at += 1;
        }
        value.reverse_bits() as i64
    }

    /// The factors that move 128 bits forward by `bytes`, for their low and their high half. A
    /// product of reflected numbers is one bit too low.
    const fn factors(bytes: usize) -> (i64, i64) {
        (remainder(8 * bytes + 63), remainder(8 * bytes - 1))
    }

    #[target_feature(enable = "avx2,vpclmulqdq")]
    pub(super) fn fold(state: u64, bytes: &[u8]) -> Option<Folded> {
        let (steps, _) = bytes.as_chunks::<STEP_BYTES>();
        let (first, others) = steps.split_first()?;
        let mut all: [__m256i; REGISTERS] = load(first);
        all[0] = _mm256_xor_si256(all[0], _mm256_set_epi64x(0, 0, 0, state as i64));
        let (low, high) = const { factors(STEP_BYTES) };
        let step = _mm256_set_epi64x(high, low, high, low);
        for bytes in others {
            let next = load(bytes);
            all = from_fn(|at| fold_register(all[at], step, next[at]));
        }
        let (low, high) = const { factors(REGISTER_BYTES) };
        let one = _mm256_set_epi64x(high, low, high, low);
        let mut last = all[0];
        for next in &all[1..] {
            last = fold_register(last, one, *next);
        }
        let mut bytes = [0; REGISTER_BYTES];
        // SAFETY: the array has the size of the register, and need not be aligned.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), last) };
        Some(Folded {
            bytes,
            replaced: steps.len() * STEP_BYTES,
        })
    }

    /// Moves both halves of `register` forward by what `factors` are for, and adds `next`.
    #[inline]
    #[target_feature(enable = "avx2,vpclmulqdq")]
    fn fold_register(register: __m256i, factors: __m256i, next: __m256i) -> __m256i {
        let low = _mm256_clmulepi64_epi128::<0x00>(register, factors);
        let high = _mm256_clmulepi64_epi128::<0x11>(register, factors);
        _mm256_xor_si256(_mm256_xor_si256(low, high), next)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; STEP_BYTES]) -> [__m256i; REGISTERS] {
        let (parts, _) = bytes.as_chunks::<REGISTER_BYTES>();
        // SAFETY: a part has the size of a register, and need not be aligned.
        from_fn(|at| unsafe { _mm256_loadu_si256(parts[at].as_ptr().cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the algorithm is defined.
    fn crc(mut state: u64, bytes: &[u8]) -> u64 {
        for byte in bytes {
            state ^= u64::from(*byte);
            for _ in 0..8 {
                let carry = state & 1;
                state >>= 1;
                if carry == 1 {
                    state ^= 0xad93_d235_94c9_3659_u64.reverse_bits();
                }
            }
        }
        state
    }

    /// Also on a processor with AVX-512, where [`fold`] leaves the bytes to other means.
    #[test]
    fn folded_bytes_have_the_same_checksum() {
        assert_eq!(!crc(!0, b"123456789"), 0xae8b_1486_0a79_9888);
        if !is_supported() {
            eprintln!("not tested: the processor has no VPCLMULQDQ");
            return;
        }
        let bytes = |at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
        let all: Vec<u8> = (0..5000).map(bytes).collect();
        for start in [0, 1, 31, 33] {
            for len in (0..1100).step_by(7).chain([2048, 4095, 4096, 4900]) {
                for state in [0, !0, 0x0123_4567_89ab_cdef] {
                    let bytes = &all[start..start + len];
                    let folded = fold_if_supported(state, bytes);
                    assert_eq!(folded.is_some(), len >= BYTES_MIN, "{len}");
                    let Some(folded) = folded else { continue };
                    assert!(folded.replaced <= len && len - folded.replaced < STEP_BYTES);
                    let rest = &bytes[folded.replaced..];
                    let found = crc(crc(0, &folded.bytes), rest);
                    assert_eq!(found, crc(state, bytes), "{start} {len} {state:x}");
                }
            }
        }
    }

    #[test]
    fn bytes_are_folded_if_that_is_the_fastest_means() {
        assert_eq!(fold(!0, &[1; BYTES_MIN - 1]), None);
        let is_fastest = is_supported() && !has_faster_means();
        assert_eq!(fold(!0, &[1; BYTES_MIN]).is_some(), is_fastest);
    }
}
