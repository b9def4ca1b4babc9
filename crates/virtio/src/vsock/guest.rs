//! What the guest says, packet by packet.

use log::debug;

use super::connection::Phase;
use super::hub::Hub;
use super::packet::{HOST_CID, Header, TYPE_STREAM, op};
use crate::Buffers;

impl Hub {
    /// Takes one packet from the guest.
    pub(super) fn packet(&mut self, mut packet: Buffers<'_>) {
        let Some(header) = Header::take(&mut packet) else {
            return debug!("a packet is shorter than its header");
        };
        if header.dst_cid != HOST_CID || header.src_cid != self.cid() {
            return debug!("a packet from {} to {} has no way", header.src_cid, header.dst_cid);
        }
        if header.socket_type != TYPE_STREAM {
            return self.refuse(&header);
        }
        let ports = header.ports_from_guest();
        match self.find(ports) {
            None if header.op == op::REQUEST => self.connect_to_host(ports, &header),
            None => self.refuse(&header),
            Some(token) => {
                if let Some(connection) = self.connection(token) {
                    connection.learn_credit(&header);
                }
                self.carry_out(token, &header, packet);
                self.settle(token);
            }
        }
    }

    fn carry_out(&mut self, token: u32, header: &Header, packet: Buffers<'_>) {
        let Some(phase) = self.connection(token).map(|connection| connection.phase) else { return };
        match (header.op, phase) {
            (op::RST, _) => self.guest_closed(token),
            (op::RESPONSE, Phase::Connecting) => self.guest_accepted(token),
            (op::RW, Phase::Open) => self.guest_sent(token, header, packet),
            (op::SHUTDOWN, Phase::Open) => self.guest_shut_down(token, header),
            (op::CREDIT_REQUEST, Phase::Open) => self.tell(token, op::CREDIT_UPDATE, 0),
            (op::CREDIT_UPDATE, _) => {}
            _ => self.reset(token),
        }
    }

    fn guest_accepted(&mut self, token: u32) {
        let Some(connection) = self.connection(token) else { return };
        connection.phase = Phase::Open;
        let answer = format!("OK {}\n", connection.ports.host);
        if let Err(error) = connection.greet(&answer) {
            debug!("a client went away: {error}");
            self.reset(token);
        }
    }

    fn guest_sent(&mut self, token: u32, header: &Header, mut packet: Buffers<'_>) {
        let Some(connection) = self.connection(token) else { return };
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        if len > packet.len() {
            debug!("a packet is shorter than it says");
            return self.reset(token);
        }
        match connection.accept(packet.take(len)) {
            Ok(true) => {}
            Ok(false) => {
                debug!("the guest sent more than it may");
                self.reset(token);
            }
            Err(error) => self.host_refused(token, &error),
        }
    }

    fn guest_shut_down(&mut self, token: u32, header: &Header) {
        let Some(connection) = self.connection(token) else { return };
        match connection.guest_shut_down(header.flags) {
            Ok(true) => {
                self.refuse(header);
                self.guest_closed(token);
            }
            Ok(false) => {}
            Err(error) => self.host_refused(token, &error),
        }
    }
}
