//! The VM generation id: sixteen bytes that no two VMs share. A guest that finds them changed knows that it has become
//! another VM, and draws new random numbers before it repeats the old ones.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use virtio::GuestMem;
use vm_memory::{Bytes, GuestAddress};

use crate::layout::VM_GENERATION_ID;

const LEN: usize = 16;

/// Gives the guest an id of its own.
pub(crate) fn write_new(mem: &GuestMem) -> io::Result<()> {
    let mut id = [0_u8; LEN];
    let filled = rustix::io::retry_on_intr(|| getrandom(&mut id[..], GetRandomFlags::empty()))?;
    if filled < LEN {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    mem.write_slice(&id, GuestAddress(VM_GENERATION_ID)).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_ids_are_the_same() {
        let mem = crate::memory::map("128M".parse().unwrap()).unwrap().mem;
        let mut ids = vec![[0; LEN]];
        for _ in 0..2 {
            write_new(&mem).unwrap();
            let id = mem.read_obj(GuestAddress(VM_GENERATION_ID)).unwrap();
            assert!(!ids.contains(&id), "{id:?}");
            ids.push(id);
        }
    }
}
