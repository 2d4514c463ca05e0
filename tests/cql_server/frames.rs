//! Frames of the protocol, and the values in them.

use std::io::Read;

pub(super) const ERROR: u8 = 0x00;
pub(super) const STARTUP: u8 = 0x01;
pub(super) const READY: u8 = 0x02;
pub(super) const AUTHENTICATE: u8 = 0x03;
pub(super) const OPTIONS: u8 = 0x05;
pub(super) const SUPPORTED: u8 = 0x06;
pub(super) const QUERY: u8 = 0x07;
pub(super) const RESULT: u8 = 0x08;
pub(super) const PREPARE: u8 = 0x09;
pub(super) const EXECUTE: u8 = 0x0a;
pub(super) const REGISTER: u8 = 0x0b;
pub(super) const AUTH_RESPONSE: u8 = 0x0f;
pub(super) const AUTH_SUCCESS: u8 = 0x10;

/// The version of requests and of answers.
const VERSIONS: [u8; 2] = [0x04, 0x84];

/// A request.
pub(super) struct Frame {
    pub(super) stream: [u8; 2],
    pub(super) opcode: u8,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// The next one. `None`: the client has gone, or speaks another version.
    pub(super) fn read(from: &mut impl Read) -> Option<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).ok()?;
        let [version, _, s0, s1, opcode, l0, l1, l2, l3] = head;
        let mut body = vec![0; u32::from_be_bytes([l0, l1, l2, l3]) as usize];
        from.read_exact(&mut body).ok()?;
        (version == VERSIONS[0]).then_some(Frame { stream: [s0, s1], opcode, body })
    }

    /// The bytes of the answer to it.
    pub(super) fn answer(&self, opcode: u8, body: &Body) -> Vec<u8> {
        let [s0, s1] = self.stream;
        let mut bytes = vec![VERSIONS[1], 0, s0, s1, opcode];
        bytes.extend((body.0.len() as u32).to_be_bytes());
        bytes.extend(&body.0);
        bytes
    }
}

/// What is in an answer.
#[derive(Default)]
pub(super) struct Body(pub(super) Vec<u8>);

impl Body {
    pub(super) fn short(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn short_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.short(bytes.len() as u16);
        self.0.extend(bytes);
        self
    }

    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.short_bytes(text.as_bytes())
    }

    /// A cell, or null.
    pub(super) fn bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        let Some(bytes) = bytes else { return self.int(-1) };
        self.int(bytes.len() as i32);
        self.0.extend(bytes);
        self
    }

    /// A type, as CQL has it.
    pub(super) fn kind(&mut self, name: &str) -> &mut Self {
        let collection = name.strip_suffix('>').and_then(|name| name.split_once('<'));
        if let Some((collection, kinds)) = collection {
            self.kind(collection);
            for kind in kinds.split(", ") {
                self.kind(kind);
            }
            return self;
        }
        self.short(match name {
            "ascii" => 0x01,
            "bigint" => 0x02,
            "blob" => 0x03,
            "boolean" => 0x04,
            "double" => 0x07,
            "int" => 0x09,
            "uuid" => 0x0c,
            "text" => 0x0d,
            "timeuuid" => 0x0f,
            "inet" => 0x10,
            "smallint" => 0x13,
            "tinyint" => 0x14,
            "list" => 0x20,
            "map" => 0x21,
            "set" => 0x22,
            _ => panic!("this server has no type {name}"),
        })
    }
}

/// The bytes of a list or set, or those of a map with its keys and values in turn.
pub(super) fn collection(count: usize, items: &[&str]) -> Vec<u8> {
    let mut body = Body::default();
    body.int(count as i32);
    for item in items {
        body.bytes(Some(item.as_bytes()));
    }
    body.0
}

/// What is left of a request. Each value is `None` if it is not there as it should be.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.short()?;
        self.take(length.into())
    }

    /// A value that is not null.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.int()?;
        self.take(length.try_into().ok()?)
    }

    /// A statement.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}
