//! Random numbers for tokens and jitter, from the kernel: who saw one token cannot tell the next.

use std::io;
use std::time::Duration;

/// Bytes asked for at a time: the kernel gives as many in one piece, and a call for each number
/// would be most of its cost.
const POOL: usize = 256;

/// Fills a buffer with random bytes.
pub(super) type Fill = fn(&mut [u8]) -> io::Result<()>;

/// A pool of random bytes.
pub(super) struct Dice {
    fill: Fill,
    pool: [u8; POOL],
    used: usize,
}

impl Dice {
    /// Of `getrandom(2)`.
    pub(super) fn of_the_kernel() -> io::Result<Self> {
        Self::new(kernel)
    }

    pub(super) fn new(fill: Fill) -> io::Result<Self> {
        let mut pool = [0; POOL];
        fill(&mut pool)?;
        Ok(Self {
            fill,
            pool,
            used: 0,
        })
    }

    /// Any number.
    pub(super) fn word(&mut self) -> io::Result<u32> {
        if let Some(word) = self.pool[self.used..].first_chunk() {
            self.used += word.len();
            return Ok(u32::from_ne_bytes(*word));
        }
        (self.fill)(&mut self.pool)?;
        self.used = size_of::<u32>();
        Ok(self
            .pool
            .first_chunk()
            .copied()
            .map_or(0, u32::from_ne_bytes))
    }

    /// A time below `span`, to the microsecond; its half where there are no random numbers.
    pub(super) fn below(&mut self, span: Duration) -> Duration {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        match self.word() {
            Ok(word) => Duration::from_micros(u64::from(word) % micros),
            Err(_) => span / 2,
        }
    }
}

fn kernel(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a live buffer.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_do_not_repeat_when_the_pool_is_filled_again() {
        let mut dice = Dice::of_the_kernel().unwrap();
        let words: HashSet<u32> = (0..1_000).map(|_| dice.word().unwrap()).collect();
        // Two of a thousand are alike in one run of 8,600; ten never.
        assert!(words.len() > 990, "{}", words.len());
    }

    #[test]
    fn times_stay_below_their_span() {
        let mut dice = Dice::of_the_kernel().unwrap();
        for _ in 0..1_000 {
            assert!(dice.below(Duration::from_millis(100)) < Duration::from_millis(100));
        }
        assert_eq!(dice.below(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn without_random_numbers_there_are_no_tokens_and_no_jitter() {
        fn none(_: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        let mut dice = Dice {
            fill: none,
            pool: [0; POOL],
            used: POOL,
        };
        assert!(dice.word().is_err());
        assert_eq!(
            dice.below(Duration::from_millis(2)),
            Duration::from_millis(1)
        );
        assert!(Dice::new(none).is_err());
    }
}
