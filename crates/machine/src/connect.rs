//! A running machine, and the ways to talk to its agent.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use session::{Connection, Exec, ExecRequest, Output};
use types::Dirs;

use crate::MachineError;
use crate::layout::Layout;
use crate::process::Process;
use crate::state::{Phase, StateV1};

/// How long the agent may take to say hello. Generous: an emulated host under load is slow, not dead.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);
/// QEMU accepts at once; only a stopped one does not.
const TCP_PATIENCE: Duration = Duration::from_secs(10);

/// A machine that was running when it was looked up.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) layout: Layout,
    pub(crate) state: StateV1,
}

impl Machine {
    /// The running machine; `None` when there is none. Starts and changes nothing.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn find(dirs: &Dirs) -> Result<Option<Self>, MachineError> {
        let layout = Layout::new(dirs);
        let Some(state) = StateV1::read(&layout)?.filter(|state| state.phase == Phase::Ready) else {
            return Ok(None);
        };
        let machine = Self { layout, state };
        Ok(machine.process()?.map(|_| machine))
    }

    /// The QEMU process; `None` when it is over.
    pub(crate) fn process(&self) -> Result<Option<Process>, MachineError> {
        Process::find(&self.state.process).map_err(MachineError::process("look for QEMU"))
    }

    /// A new connection to the agent.
    ///
    /// # Errors
    /// [`MachineError::NotRunning`] when the machine has ended; [`MachineError::Session`] when its agent does not
    /// answer within a minute.
    pub fn connect(&self) -> Result<Connection, MachineError> {
        Ok(self.connect_within(HELLO_PATIENCE)?.0)
    }

    /// Starts a process in the machine; for whatever it does, see [`Exec`].
    ///
    /// # Errors
    /// As [`Machine::connect`], and when the agent refuses.
    pub fn exec(&self, request: &ExecRequest) -> Result<Exec, MachineError> {
        Ok(self.connect()?.exec(request)?)
    }

    /// Runs a process in the machine to its end and keeps at most `limit_bytes` of what it writes.
    ///
    /// # Errors
    /// As [`Machine::exec`], and when it writes more.
    pub fn output(&self, request: &ExecRequest, stdin: &[u8], limit_bytes: usize) -> Result<Output, MachineError> {
        Ok(self.connect()?.output(request, stdin, limit_bytes)?)
    }

    /// A connection, and a second handle on its stream to end it with. The process is looked at first, because the
    /// port of a dead machine may be anybody's, and the token is not for anybody.
    pub(crate) fn connect_within(&self, patience: Duration) -> Result<(Connection, TcpStream), MachineError> {
        if self.process()?.is_none() {
            return Err(MachineError::NotRunning);
        }
        let path = self.layout.token();
        let token = fs::read_to_string(&path).map_err(MachineError::io("read", &path))?;
        let lost = |source| MachineError::Session { source: session::SessionError::Lost { source } };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.state.port));
        let stream = TcpStream::connect_timeout(&address, patience.min(TCP_PATIENCE)).map_err(lost)?;
        let handle = stream.try_clone().map_err(lost)?;
        Ok((Connection::open(stream, Some(&token), patience)?, handle))
    }
}
