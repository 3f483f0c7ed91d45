//! Packets, as they are on the wire (TUN-02). Each is one message of the stream.
//!
//! Source: apiserver-network-proxy, `proto/agent/agent.proto`, `konnectivity-client/proto/client/client.proto`.

use crate::{
    grpc::proto::{Error, Limits, decode, encode, message},
    logic::tunnel::carried::ConnectionId,
};

/// Longest message that a server may send (TUN-13).
pub(super) const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Limits of a message that is read.
const LIMITS: Limits = Limits {
    depth: 4,
    entries: 64,
    bytes: MAX_MESSAGE_BYTES + 4096,
};

mod kind {
    pub(super) const DIAL_REQUEST: i32 = 0;
    pub(super) const DIAL_RESPONSE: i32 = 1;
    pub(super) const CLOSE_REQUEST: i32 = 2;
    pub(super) const CLOSE_RESPONSE: i32 = 3;
    pub(super) const DATA: i32 = 4;
    pub(super) const CLOSE_DIAL: i32 = 5;
    pub(super) const DRAIN: i32 = 6;
}

message! {
    struct PacketMessage {
        1 kind: i32,
        2 dial_request: Option<DialRequest>,
        3 dial_response: Option<DialResponse>,
        4 data: Option<PacketData>,
        5 close_request: Option<CloseRequest>,
        6 close_response: Option<CloseResponse>,
        7 close_dial: Option<CloseDial>,
        8 drain: Option<DrainPacket>,
    } oneof [2 dial_request, 3 dial_response, 4 data, 5 close_request, 6 close_response, 7 close_dial, 8 drain]
}
message! {
    struct DialRequest {
        1 protocol: String,
        2 address: String,
        3 random: i64,
    }
    struct DialResponse {
        1 error: String,
        2 id: i64,
        3 random: i64,
    }
    struct PacketData {
        1 id: i64,
        2 error: String,
        3 data: Vec<u8>,
    }
    struct CloseRequest {
        1 id: i64,
    }
    struct CloseResponse {
        1 error: String,
        2 id: i64,
    }
    struct CloseDial {
        1 random: i64,
    }
    struct DrainPacket {
    }
}

/// Message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerMessage {
    Dial {
        protocol: String,
        address: String,
        random: i64,
    },
    CancelDial {
        random: i64,
    },
    Data {
        id: ConnectionId,
        bytes: Vec<u8>,
    },
    Close {
        id: ConnectionId,
    },
    /// A packet that is not for agents, or of a kind that is not known yet.
    Else,
}

/// Reads a message. Errors: it is no packet.
pub(super) fn read_packet(message: &[u8]) -> Result<ServerMessage, Error> {
    let mut packet = PacketMessage::default();
    decode(&mut packet, message, LIMITS)?;
    // The kind and the field that is set have to agree; an absent kind is 0.
    Ok(match packet {
        PacketMessage {
            kind: kind::DIAL_REQUEST,
            dial_request: Some(dial),
            ..
        } => ServerMessage::Dial {
            protocol: dial.protocol,
            address: dial.address,
            random: dial.random,
        },
        PacketMessage {
            kind: kind::CLOSE_DIAL,
            close_dial: Some(close),
            ..
        } => ServerMessage::CancelDial {
            random: close.random,
        },
        PacketMessage {
            kind: kind::DATA,
            data: Some(data),
            ..
        } => ServerMessage::Data {
            id: data.id,
            bytes: data.data,
        },
        PacketMessage {
            kind: kind::CLOSE_REQUEST,
            close_request: Some(close),
            ..
        } => ServerMessage::Close { id: close.id },
        _ => ServerMessage::Else,
    })
}

/// Answers a dial: with the number of the connection, or the reason why there is none.
pub(super) fn encode_dial_response(random: i64, answer: Result<ConnectionId, &str>) -> Vec<u8> {
    let (id, error) = match answer {
        Ok(id) => (id, String::new()),
        Err(why) => (0, why.to_owned()),
    };
    encode(&mut PacketMessage {
        kind: kind::DIAL_RESPONSE,
        dial_response: Some(DialResponse { error, id, random }),
        ..PacketMessage::default()
    })
}

/// Bytes of a connection.
pub(super) fn encode_data(id: ConnectionId, data: Vec<u8>) -> Vec<u8> {
    encode(&mut PacketMessage {
        kind: kind::DATA,
        data: Some(PacketData {
            id,
            data,
            ..PacketData::default()
        }),
        ..PacketMessage::default()
    })
}

/// Says that a connection is over; `error`: the reason why there was none.
pub(super) fn encode_close_response(id: ConnectionId, error: &str) -> Vec<u8> {
    encode(&mut PacketMessage {
        kind: kind::CLOSE_RESPONSE,
        close_response: Some(CloseResponse {
            error: error.to_owned(),
            id,
        }),
        ..PacketMessage::default()
    })
}

/// Says that no dials are taken any more.
pub(super) fn encode_drain() -> Vec<u8> {
    encode(&mut PacketMessage {
        kind: kind::DRAIN,
        drain: Some(DrainPacket::default()),
        ..PacketMessage::default()
    })
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    //! Entry point of the fuzz target: packets of a server, one after the other, each with its length before it.

    use super::*;
    use crate::{
        api::MonoTime,
        logic::tunnel::{
            carried::MAX_CONNECTIONS,
            stream::{ConnectionIds, StreamAction, TunnelPacket, TunnelStream},
        },
    };

    /// Checks that the states of connections hold together, whatever the server says.
    pub(crate) fn packets(mut bytes: &[u8]) -> String {
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let (mut open, mut dials, mut answers) = (Vec::new(), 0, 0);
        let mut out = String::new();
        let mut now = 0;
        while let Some((&len, rest)) = bytes.split_first() {
            let (message, rest) = rest.split_at(rest.len().min(len.into()));
            bytes = rest;
            now += 1000;
            let said = match read_packet(message) {
                Ok(said) => said,
                Err(_) => return out + "x",
            };
            let heard = match said {
                ServerMessage::Dial { random, .. } => {
                    dials += 1;
                    TunnelPacket::Dial {
                        random,
                        is_own: random % 5 != 0,
                        was_own: random % 3 != 0,
                        is_spent: false,
                    }
                }
                ServerMessage::CancelDial { random } => TunnelPacket::CancelDial { random },
                ServerMessage::Data { id, .. } => TunnelPacket::Data { id },
                ServerMessage::Close { id } => TunnelPacket::Close { id },
                ServerMessage::Else => continue,
            };
            match stream.take_packet(heard, &mut ids, MonoTime(now)) {
                StreamAction::Open { id, .. } => {
                    answers += 1;
                    assert!(!open.contains(&id), "a number is used twice");
                    open.push(id);
                    out.push('o');
                }
                StreamAction::Refuse { .. } => {
                    answers += 1;
                    out.push('r');
                }
                StreamAction::Deliver => {
                    let TunnelPacket::Data { id } = heard else {
                        panic!("bytes of no packet");
                    };
                    assert!(open.contains(&id));
                    stream.record_given_bytes(id, len.into(), len % 2 != 0, MonoTime(now));
                    out.push('d');
                }
                StreamAction::Drop { id } => {
                    assert!(open.contains(&id));
                    open.retain(|of| *of != id);
                    out.push('c');
                }
                StreamAction::Unknown { id } => {
                    assert!(!open.contains(&id));
                    out.push('u');
                }
                StreamAction::Nothing => out.push('n'),
            }
            while let Some(id) = stream.connections.take_overdue(MonoTime(now)) {
                open.retain(|of| *of != id);
            }
            assert_eq!(stream.connections.count(), open.len());
            assert!(open.len() <= MAX_CONNECTIONS);
        }
        assert_eq!(dials, answers, "each dial has one answer");
        out
    }

    #[cfg(test)]
    pub(crate) mod tests {
        use super::{super::tests::of_server, *};

        /// Inputs to begin with.
        pub(crate) fn seeds() -> Vec<Vec<u8>> {
            let framed = |all: &[Vec<u8>]| {
                let piece =
                    |m: &Vec<u8>| [&[u8::try_from(m.len()).expect("short")][..], m].concat();
                all.iter().flat_map(piece).collect()
            };
            let server = of_server;
            vec![
                framed(&[
                    server(ServerMessage::Dial {
                        protocol: "tcp".into(),
                        address: "n:10250".into(),
                        random: 7,
                    }),
                    encode_data(1, b"hello".to_vec()),
                    server(ServerMessage::Close { id: 1 }),
                    server(ServerMessage::CancelDial { random: 7 }),
                ]),
                framed(&[
                    encode_drain(),
                    encode_close_response(1, "x"),
                    encode_dial_response(1, Ok(2)),
                ]),
            ]
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A packet as a server writes it.
    pub(in crate::parts::tunnel) fn of_server(said: ServerMessage) -> Vec<u8> {
        let mut packet = match said {
            ServerMessage::Dial {
                protocol,
                address,
                random,
            } => PacketMessage {
                dial_request: Some(DialRequest {
                    protocol,
                    address,
                    random,
                }),
                ..PacketMessage::default()
            },
            ServerMessage::CancelDial { random } => PacketMessage {
                kind: kind::CLOSE_DIAL,
                close_dial: Some(CloseDial { random }),
                ..PacketMessage::default()
            },
            ServerMessage::Close { id } => PacketMessage {
                kind: kind::CLOSE_REQUEST,
                close_request: Some(CloseRequest { id }),
                ..PacketMessage::default()
            },
            ServerMessage::Data { id, bytes } => return encode_data(id, bytes),
            ServerMessage::Else => return encode_drain(),
        };
        encode(&mut packet)
    }

    #[test]
    fn packets_of_a_server() {
        // TUN-02
        // A dial has no number on the wire: 0 is absent.
        let dial = b"\x12\x10\x0a\x03tcp\x12\x06n:1025\x18\xff\x01";
        assert_eq!(
            read_packet(dial),
            Ok(ServerMessage::Dial {
                protocol: "tcp".into(),
                address: "n:1025".into(),
                random: 255,
            })
        );
        let id = 0x7fff_ffff_ffff_ffff;
        for said in [
            ServerMessage::CancelDial { random: -1 },
            ServerMessage::Close { id },
            ServerMessage::Data {
                id,
                bytes: vec![0; 100],
            },
        ] {
            assert_eq!(read_packet(&of_server(said.clone())), Ok(said));
        }
        // What agents say, kinds that do not exist yet, and what has nothing in it.
        for other in [
            &b"\x08\x07"[..],
            b"",
            b"\x08\x06\x42\x00",
            b"\x08\x04",
            b"\x08\x63\x22\x02\x08\x01",
        ] {
            assert_eq!(read_packet(other), Ok(ServerMessage::Else), "{other:?}");
        }
        assert_eq!(read_packet(b"\x12\x7f"), Err(Error::Cut));
    }

    #[test]
    fn packets_of_this_agent() {
        // TUN-02
        assert_eq!(
            encode_dial_response(9, Ok(5)),
            b"\x08\x01\x1a\x04\x10\x05\x18\x09"
        );
        assert_eq!(
            encode_dial_response(9, Err("no")),
            b"\x08\x01\x1a\x06\x0a\x02no\x18\x09"
        );
        assert_eq!(
            encode_data(3, b"hi".to_vec()),
            b"\x08\x04\x22\x06\x08\x03\x1a\x02hi"
        );
        assert_eq!(encode_close_response(3, ""), b"\x08\x03\x32\x02\x10\x03");
        assert_eq!(
            encode_close_response(3, "?"),
            b"\x08\x03\x32\x05\x0a\x01?\x10\x03"
        );
        assert_eq!(encode_drain(), b"\x08\x06\x42\x00");
    }
}
