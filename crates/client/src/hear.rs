//! Who says no before all was sent has said why: the answer is read, although nobody takes the rest.

use std::io;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Connections that read on when nobody takes what is written.
#[derive(Debug)]
pub(crate) struct Hear<C>(pub(crate) C);

impl<C: Connector> Connector for Hear<C> {
    type Out = Hearing<C::Out>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, Error> {
        let connected = self.0.connect(details, chained)?;
        Ok(connected.map(|inner| Hearing { inner, is_unheard: false }))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Hearing<T> {
    inner: T,
    /// The other side reads no more.
    is_unheard: bool,
}

impl<T: Transport> Transport for Hearing<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.is_unheard {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(error)) if is_refusal(&error) => {
                self.is_unheard = true;
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.is_unheard && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
