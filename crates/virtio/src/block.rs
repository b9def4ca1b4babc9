//! The disk (virtio 1.2, 5.2): one queue of requests, carried out one after the other on the loop's thread, so that
//! between two calls nothing is ever under way.
//!
//! ```text
//! readable: type u32 | reserved u32 | sector u64 | data to write ...
//! writable: data read ... | status u8
//! ```

mod backend;
mod blocks;
mod cow;
mod layers;
mod quota;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use log::{debug, warn};
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_ID_BYTES,
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT,
};
use virtio_queue::Queue;

pub use self::backend::{Backend, RawDisk};
pub use self::cow::{CowDisk, Fresh, Prepared};
pub use self::layers::Layers;
pub use self::quota::Quota;
use crate::device::read_bytes;
use crate::queue::{Chain, Handled, QueueStateV1, Served, serve};
use crate::{
    ActivateError, Activation, Buffers, Device, DeviceError, DeviceState, GuestMem, Interrupt, Kind, Readiness,
    RestoreError, Work,
};

const QUEUE_SIZE: u16 = 256;
const SECTOR: u64 = 512;
/// A request has a header and a status beside its data.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Large enough not to split what Linux merges, small enough that `SEG_MAX` of them stay below [`MAX_DATA`].
const SIZE_MAX: u32 = 64 << 10;
/// A request keeps the loop waiting for the disk. A driver that heeds `SIZE_MAX` and `SEG_MAX` cannot exceed this.
const MAX_DATA: usize = 16 << 20;
/// How many requests are carried out before the loop may look after something else.
const BATCH: usize = 16;
/// Once so many bytes were moved, no further request is begun before that.
const BATCH_BYTES: usize = 1 << 20;
const HEADER_LEN: usize = 16;
const ID_LEN: usize = VIRTIO_BLK_ID_BYTES as usize;

/// What a disk remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockStateV1 {
    /// The disk's size in sectors of 512 bytes, as the driver has seen it.
    pub sectors: u64,
}

/// A disk.
#[derive(Debug)]
pub struct Block {
    disk: Disk,
    active: Option<Active>,
}

#[derive(Debug)]
struct Disk {
    backend: Box<dyn Backend>,
    serial: [u8; ID_LEN],
}

#[derive(Debug)]
struct Active {
    mem: GuestMem,
    irq: Arc<Interrupt>,
    queue: Queue,
}

impl Block {
    /// A disk with these contents. What a driver shows as its serial number is cut to 20 bytes; a size that is not a
    /// multiple of 512 bytes is rounded down.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>, serial: &str) -> Self {
        let mut id = [0; ID_LEN];
        id.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        Self { disk: Disk { backend, serial: id }, active: None }
    }

    /// `struct virtio_blk_config` up to `seg_max`.
    fn config(&self) -> [u8; 16] {
        let mut config = [0; 16];
        config[..8].copy_from_slice(&self.disk.sectors().to_le_bytes());
        config[8..12].copy_from_slice(&SIZE_MAX.to_le_bytes());
        config[12..].copy_from_slice(&SEG_MAX.to_le_bytes());
        config
    }
}

impl Disk {
    fn sectors(&self) -> u64 {
        self.backend.len_bytes() / SECTOR
    }

    /// Carries out one request; says how many bytes of the chain were written.
    fn handle(&mut self, mut chain: Chain<'_>) -> u32 {
        let Some(data_len) = chain.writable.len().checked_sub(1) else {
            debug!("a request has no room for its status");
            return 0;
        };
        let data = chain.writable.take(data_len);
        let (status, written) = match self.execute(chain.readable, data) {
            Ok(written) => (VIRTIO_BLK_S_OK, written),
            Err(Refusal::Unsupported) => (VIRTIO_BLK_S_UNSUPP, 0),
            Err(Refusal::Impossible(why)) => {
                debug!("a request cannot be carried out: {why}");
                (VIRTIO_BLK_S_IOERR, 0)
            }
            // The guest is told no more than that; whoever looks after the host wants to know of a full disk.
            Err(Refusal::Failed(error)) => {
                warn!("a request failed: {error}");
                (VIRTIO_BLK_S_IOERR, 0)
            }
        };
        chain.writable.copy_from(&status.to_le_bytes()[..1]);
        // The length covers what was written from the front without a gap (2.7.8.2).
        let len = if written == data_len { data_len + 1 } else { written };
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Says how much was written into `data`.
    fn execute(&mut self, mut request: Buffers<'_>, mut data: Buffers<'_>) -> Result<usize, Refusal> {
        let mut header = [0; HEADER_LEN];
        if request.copy_to(&mut header) < HEADER_LEN {
            return Err(Refusal::Impossible("the header is cut short"));
        }
        let [a, b, c, d, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        match u32::from_le_bytes([a, b, c, d]) {
            VIRTIO_BLK_T_IN => {
                let (offset, len) = (self.place(sector, data.len())?, data.len());
                self.backend.read_at(data, offset)?;
                Ok(len)
            }
            VIRTIO_BLK_T_OUT if self.backend.read_only() => Err(Refusal::Impossible("the disk is read-only")),
            VIRTIO_BLK_T_OUT => {
                let offset = self.place(sector, request.len())?;
                self.backend.write_at(request, offset)?;
                Ok(0)
            }
            VIRTIO_BLK_T_FLUSH => {
                self.backend.flush()?;
                Ok(0)
            }
            VIRTIO_BLK_T_GET_ID if data.len() < ID_LEN => {
                Err(Refusal::Impossible("there is no room for the serial number"))
            }
            VIRTIO_BLK_T_GET_ID => Ok(data.copy_from(&self.serial)),
            _ => Err(Refusal::Unsupported),
        }
    }

    /// Where a transfer begins, if all of it lies on the disk.
    fn place(&self, sector: u64, len: usize) -> Result<u64, Refusal> {
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        if len > MAX_DATA || !bytes.is_multiple_of(SECTOR) {
            return Err(Refusal::Impossible("the length is not a number of sectors, or too large"));
        }
        match sector.checked_add(bytes / SECTOR) {
            Some(end) if end <= self.sectors() => Ok(sector * SECTOR),
            _ => Err(Refusal::Impossible("it reaches beyond the end of the disk")),
        }
    }
}

/// Why a request was not carried out.
enum Refusal {
    Unsupported,
    /// The driver's fault.
    Impossible(&'static str),
    /// The host's.
    Failed(std::io::Error),
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Device for Block {
    fn kind(&self) -> Kind {
        Kind::Block
    }

    fn features(&self) -> u64 {
        let read_only = u64::from(self.disk.backend.read_only());
        1 << VIRTIO_BLK_F_SIZE_MAX | 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_FLUSH | read_only << VIRTIO_BLK_F_RO
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_bytes(&self.config(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {
        // Nothing in it can be changed without a feature we do not offer.
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        let Activation { mem, irq, mut queues, .. } = activation;
        self.active = queues.pop().map(|queue| Active { mem, irq, queue });
        Ok(())
    }

    fn reset(&mut self) {
        self.active = None;
    }

    fn queue_notified(&mut self, _queue: u16) -> Result<Work, DeviceError> {
        let Some(Active { mem, irq, queue }) = &mut self.active else { return Ok(Work::Done) };
        let mut moved = 0;
        let served = serve(queue, mem, irq, BATCH, |chain| {
            if moved >= BATCH_BYTES {
                return Handled::NotNow;
            }
            moved += chain.readable.len() + chain.writable.len();
            Handled::Used(self.disk.handle(chain))
        })?;
        Ok(if served == Served::All { Work::Done } else { Work::More })
    }

    fn host_ready(&mut self, _token: u32, _ready: Readiness) -> Result<Work, DeviceError> {
        Ok(Work::Done)
    }

    fn state(&self) -> DeviceState {
        DeviceState::Block(BlockStateV1 { sectors: self.disk.sectors() })
    }

    fn queue_states(&self) -> Vec<QueueStateV1> {
        self.active.iter().map(|active| QueueStateV1::from(&active.queue)).collect()
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), RestoreError> {
        let DeviceState::Block(BlockStateV1 { sectors }) = state else {
            return Err(RestoreError::Kind { expected: Kind::Block });
        };
        let (saved, found) = (*sectors, self.disk.sectors());
        if saved == found { Ok(()) } else { Err(RestoreError::Host { what: "the disk's size", saved, found }) }
    }
}
