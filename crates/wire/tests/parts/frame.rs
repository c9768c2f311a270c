//! A packet in memory that can be turned into an answer, as the echo program does in the kernel.

use std::cell::RefCell;

use pathproof_wire::packet::Bytes;
use pathproof_wire::probe::answer::Wire;

#[derive(Debug)]
pub struct Frame(RefCell<Vec<u8>>);

impl Frame {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(RefCell::new(bytes))
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner()
    }
}

impl Bytes for Frame {
    fn length(&self) -> usize {
        self.0.borrow().len()
    }

    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.borrow().as_slice().load(offset)
    }

    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        self.0.borrow().as_slice().words(offset)
    }
}

impl Wire for Frame {
    fn store<const N: usize>(&self, offset: usize, bytes: [u8; N]) -> Option<()> {
        let mut frame = self.0.borrow_mut();
        let place = frame.get_mut(offset..)?.first_chunk_mut()?;
        *place = bytes;
        Some(())
    }

    /// RFC 1624, equation 3, on 16-bit words.
    fn adjust(&self, offset: usize, from: u32, to: u32) -> Option<()> {
        let halves = |word: u32| {
            let [a, b, c, d] = word.to_ne_bytes();
            [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
        };
        let mut sum = u32::from(!u16::from_be_bytes(self.load(offset)?));
        for (from, to) in halves(from).into_iter().zip(halves(to)) {
            sum += u32::from(!from) + u32::from(to);
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        self.store(offset, (!(sum as u16)).to_be_bytes())
    }
}
