//! Questions that the daemons of a cluster ask each other. Their shards carry them.
//!
//! 1. The asker pushes its question to a list in the shard of the member that it asks (`RPUSH`).
//! 2. That member's daemon takes it from the list (`BLPOP`), and the provider of its topic answers it.
//! 3. The answer is stored in the asker's shard, in values of a block each, with checksums (`SETEX`). Whatever is not read
//!    leaves the shard after [`KEPT_S`]. A note about it is pushed to the asker's list.
//! 4. The asker's daemon reads the values, and removes them.
//!
//! A member that does not answer in time has no answer. Nothing here waits without a limit. Notes about blocks go the same
//! way as questions, and have no answer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use redis::{RedisResult, cmd};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::connection::{Access, Connection};
use super::own_shard::OwnShard;
use super::pipeline::Request;
use super::shard::key;
use super::shards::{Note, TakeNote};
use super::values::{Key, Keys, Seal};
use crate::disk::Buffer;
use crate::ids::BLOCK_BYTES;
use crate::sync::Mutex;

/// The name of a member's list in its own shard.
const LIST: &str = "w";

/// For how many seconds an answer stays in a shard.
const KEPT_S: &str = "10";

/// An answer has so many values at most.
const PARTS_MOST: usize = 256;

/// How long the listener waits for a message, in seconds, and for a shard.
const LISTEN_S: u64 = 1;
const REST: Duration = Duration::from_millis(200);

/// Takes an answer; `None` if there is none.
pub type Deliver = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// A question to another member.
pub struct Want {
    /// The id of the member.
    pub member: u64,
    /// Which provider answers it.
    pub topic: &'static str,
    pub question: String,
    /// How long the answer is waited for.
    pub patience: Duration,
    /// It must not block.
    pub deliver: Deliver,
}

/// The right to answer a question. If it is dropped, there is no answer.
pub struct Answering(Option<Deliver>);

/// Answers questions of others. It must not block.
pub type Provider = Arc<dyn Fn(String, Answering) + Send + Sync>;

/// Asks other members, and answers them. No call blocks.
pub trait Wants: Send + Sync + 'static {
    /// The id of this member and those of all members, this one, too. `None` as long as it is none.
    fn members(&self) -> Option<(u64, Vec<u64>)>;

    /// Asks another member.
    fn want(&self, want: Want);

    /// Has this provider answer questions of a topic from now on.
    fn provide(&self, topic: &'static str, provider: Provider);
}

impl Answering {
    pub fn new(deliver: Deliver) -> Self {
        Answering(Some(deliver))
    }

    pub fn answer(mut self, answer: Option<Vec<u8>>) {
        if let Some(deliver) = self.0.take() {
            deliver(answer);
        }
    }

    /// Gives no answer to somebody who does not wait for one.
    pub fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(deliver) = self.0.take() {
            deliver(None);
        }
    }
}

/// An element of the list of a member.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Message {
    Question {
        id: u64,
        /// The id of the asker.
        from: u64,
        topic: String,
        text: String,
    },
    /// The lengths of the answer's values in bytes; `None` if there is no answer.
    Answer {
        id: u64,
        parts: Option<Vec<usize>>,
    },
    /// [`Note`], with the key as text.
    Given(String),
    Asked(String),
}

impl Message {
    fn push(&self, place: &ListPlace) -> Request {
        let ListPlace { tag, list, keys, seal } = place;
        let text = seal.close_text(keys, list, &serde_json::to_vec(self).unwrap_or_default());
        Request::new(&[b"RPUSH", key(tag, list).as_bytes(), &text])
    }
}

/// Sends a note to the member with this tag, in its own shard.
pub(super) fn noting(tag: &str, note: Note) -> Request {
    let message = match note {
        Note::Given(key) => Message::Given(key.to_string()),
        Note::Asked(key) => Message::Asked(key.to_string()),
    };
    let text = serde_json::to_vec(&message).unwrap_or_default();
    Request::new(&[b"RPUSH", key(tag, LIST).as_bytes(), &text])
}

/// The place of a node's list, and the protection of its messages.
pub(super) struct ListPlace {
    /// The tag of the shard that has it.
    pub(super) tag: String,
    /// Its name there.
    pub(super) list: String,
    pub(super) keys: Keys,
    pub(super) seal: Seal,
}

/// The list of a node: the shard that has it, and its name there.
#[derive(Clone)]
pub(super) struct List {
    /// The id of a member.
    pub(super) shard: u64,
    pub(super) name: String,
}

impl List {
    /// The list of a member with a shard of its own.
    pub(super) fn of(member: u64) -> Self {
        List { shard: member, name: LIST.to_owned() }
    }
}

/// Where this node takes messages from its list.
#[derive(Clone)]
pub(super) struct OwnList {
    access: Access,
    tag: String,
    list: String,
}

impl OwnList {
    /// Its list in a shard with this tag.
    pub(super) fn new(access: Access, tag: &str, list: String) -> Self {
        OwnList { access, tag: tag.to_owned(), list }
    }

    /// Its list in its own shard.
    pub(super) fn own(shard: &OwnShard) -> Self {
        OwnList::new(shard.access.clone(), &shard.tag, LIST.to_owned())
    }

    fn is(&self, other: &OwnList) -> bool {
        (&self.tag, &self.list) == (&other.tag, &other.list)
    }
}

/// The name of a value of an answer, and the key that its checksum is made with.
fn part_of_answer(tag: &str, keys: &Keys, id: u64, part: usize) -> (String, Key) {
    let name = key(tag, &format!("a:{id:016x}:{part}"));
    (name, keys.key(b"answer", &id.to_le_bytes(), part as u64))
}

/// The questions of this member that have no answer yet, and the providers of answers to others.
pub(super) struct Wanted {
    open: Mutex<HashMap<u64, Deliver>>,
    /// The id of the next question. It begins anywhere: an answer to an earlier daemon may still come.
    next: AtomicU64,
    providers: Mutex<HashMap<&'static str, Provider>>,
    take_note: OnceLock<TakeNote>,
    has_ended: AtomicBool,
}

impl Wanted {
    pub(super) fn new() -> Self {
        Wanted {
            open: Mutex::default(),
            next: AtomicU64::new(RandomState::new().build_hasher().finish()),
            providers: Mutex::default(),
            take_note: OnceLock::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Asks another member.
    pub(super) fn ask(self: &Arc<Self>, client: &Client, want: Want) {
        let Want { member, topic, question: text, patience, deliver } = want;
        let own = client.membership().map(|membership| membership.own);
        let Some(from) = own.filter(|_| !self.has_ended.load(Ordering::Acquire)) else {
            return deliver(None);
        };
        let (id, topic) = (self.next.fetch_add(1, Ordering::Relaxed), topic.to_owned());
        self.open.lock().insert(id, deliver);
        let question = Message::Question { id, from, topic, text };
        let (refused, late) = (Arc::clone(self), Arc::clone(self));
        let push = move |place: &ListPlace| std::iter::once(question.push(place));
        client.send(member, push, move |is_sent| match is_sent {
            true => {}
            false => refused.deliver(id, None),
        });
        client.after(patience, move || late.deliver(id, None));
    }

    pub(super) fn provide(&self, topic: &'static str, provider: Provider) {
        self.providers.lock().insert(topic, provider);
    }

    pub(super) fn take_notes(&self, take: TakeNote) {
        // It is set once for an engine.
        let _ = self.take_note.set(take);
    }

    /// Has a note taken, if its text is the one of a key.
    fn note(&self, text: &str, of: fn(Key) -> Note) {
        if let (Some(take), Ok(key)) = (self.take_note.get(), text.parse()) {
            take(of(key));
        }
    }

    /// Whether the asker still waits.
    fn is_open(&self, id: u64) -> bool {
        self.open.lock().contains_key(&id)
    }

    /// Delivers an answer, unless the asker waits no longer.
    fn deliver(&self, id: u64, answer: Option<Vec<u8>>) {
        let deliver = self.open.lock().remove(&id);
        if let Some(deliver) = deliver {
            deliver(answer);
        }
    }

    /// Has no question answered any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        let open = std::mem::take(&mut *self.open.lock());
        // Under no lock: whoever waits is told.
        open.into_values().for_each(|deliver| deliver(None));
    }
}

/// Starts the thread that takes messages from the list of this node.
///
/// # Errors
/// If it cannot be started.
pub(super) fn listen(
    wanted: Arc<Wanted>,
    client: Arc<Client>,
    own_list: impl Fn() -> Option<OwnList> + Send + 'static,
) -> std::io::Result<()> {
    let listen = move || {
        // Nobody waits any more for what an earlier daemon was asked.
        let mut is_first = true;
        while !wanted.has_ended.load(Ordering::Acquire) {
            if let Some(known) = own_list() {
                let is_current = || own_list().is_some_and(|now| now.is(&known));
                let listener = Listener { wanted: &wanted, client: &client, own_list: &known };
                if let Err(error) = listener.run(&mut is_first, &is_current) {
                    tracing::debug!(%error, "questions of other nodes are not heard");
                }
            }
            thread::sleep(REST);
        }
    };
    thread::Builder::new().name("belady-wants".into()).spawn(listen).map(drop)
}

struct Listener<'a> {
    wanted: &'a Arc<Wanted>,
    client: &'a Arc<Client>,
    own_list: &'a OwnList,
}

impl Listener<'_> {
    /// Takes messages until the shard does not answer, or the list is elsewhere. The first time, those that are there
    /// already are removed.
    fn run(&self, is_first: &mut bool, is_current: &dyn Fn() -> bool) -> RedisResult<()> {
        let OwnList { access, tag, list } = self.own_list;
        let (mut connection, list) = (access.connect()?, key(tag, list));
        if *is_first {
            cmd("UNLINK").arg(&list).query::<()>(&mut connection)?;
            *is_first = false;
        }
        while !self.wanted.has_ended.load(Ordering::Acquire) && is_current() {
            let taken: Option<(String, Vec<u8>)> =
                cmd("BLPOP").arg(&list).arg(LISTEN_S).query(&mut connection)?;
            let Some((_, text)) = taken else { continue };
            let Some((keys, seal)) = self.client.keys() else { continue };
            let text = seal.open_text(&keys, &self.own_list.list, text);
            let message = text.and_then(|text| serde_json::from_slice(&text).ok());
            match message {
                Some(Message::Question { id, from, topic, text }) => {
                    self.provide(id, from, &topic, text);
                }
                Some(Message::Answer { id, parts }) => {
                    let parts = parts.filter(|_| self.wanted.is_open(id));
                    let answer = parts.map(|parts| self.read(&mut connection, id, &parts));
                    self.wanted.deliver(id, answer.transpose()?.flatten());
                }
                Some(Message::Given(key)) => self.wanted.note(&key, Note::Given),
                Some(Message::Asked(key)) => self.wanted.note(&key, Note::Asked),
                None => {}
            }
        }
        Ok(())
    }

    fn provide(&self, id: u64, from: u64, topic: &str, text: String) {
        let provider = self.wanted.providers.lock().get(topic).cloned();
        let client = Arc::clone(self.client);
        let answering = Answering::new(Box::new(move |answer| send(&client, id, from, answer)));
        if let Some(provider) = provider {
            provider(text, answering);
        }
    }

    /// Reads an answer from the own shard, and removes it. None if it is not whole.
    fn read(
        &self,
        connection: &mut Connection,
        id: u64,
        parts: &[usize],
    ) -> RedisResult<Option<Vec<u8>>> {
        let Some((keys, seal)) = self.client.keys() else { return Ok(None) };
        let (mut answer, mut is_whole) = (Vec::new(), parts.len() <= PARTS_MOST);
        for (part, length) in parts.iter().enumerate().take(PARTS_MOST) {
            let (name, key) = part_of_answer(&self.own_list.tag, &keys, id, part);
            let value: Option<Vec<u8>> = cmd("GET").arg(&name).query(connection)?;
            cmd("UNLINK").arg(&name).query::<()>(connection)?;
            match value.and_then(|value| seal.open(key, Some(*length), value)) {
                Some(bytes) => answer.extend(bytes),
                None => is_whole = false,
            }
        }
        Ok(is_whole.then_some(answer))
    }
}

/// Sends the answer to a question. If the asker's shard does not take it, the asker is told that there is none.
fn send(client: &Arc<Client>, id: u64, to: u64, answer: Option<Vec<u8>>) {
    let Some(bytes) = answer.filter(|bytes| bytes.len() <= PARTS_MOST * PART) else {
        let none = Message::Answer { id, parts: None };
        let push = move |place: &ListPlace| std::iter::once(none.push(place));
        return client.send(to, push, |_| ());
    };
    let lengths: Vec<usize> = bytes.chunks(PART).map(<[u8]>::len).collect();
    let count = lengths.len();
    let store = move |place: &ListPlace| {
        let told = Message::Answer { id, parts: Some(lengths) }.push(place);
        let (tag, keys, seal) = (place.tag.clone(), place.keys.clone(), place.seal.clone());
        let store = move |part: usize| {
            let bytes = bytes.chunks(PART).nth(part).unwrap_or_default();
            let (name, key) = part_of_answer(&tag, &keys, id, part);
            // Without random bytes there is nothing that could be read.
            let value = seal.close(key, &Arc::new(Buffer::from(bytes.to_vec())));
            let value = value.map(|value| value.all()).unwrap_or_default();
            Request::new(&[b"SETEX", name.as_bytes(), KEPT_S.as_bytes(), &value])
        };
        (0..count).map(store).chain([told])
    };
    // Without this, a part of it would be in the way of what the asker is told.
    let take_back = move |place: &ListPlace| {
        let told = Message::Answer { id, parts: None }.push(place);
        let (tag, keys) = (place.tag.clone(), place.keys.clone());
        let remove = move |part: usize| {
            let (name, _) = part_of_answer(&tag, &keys, id, part);
            Request::new(&[b"UNLINK", name.as_bytes()])
        };
        (0..count).map(remove).chain([told])
    };
    let answering = Arc::clone(client);
    client.send(to, store, move |is_stored| match is_stored {
        true => {}
        false => answering.send(to, take_back, |_| ()),
    });
}

/// The bytes of an answer that one value has.
const PART: usize = BLOCK_BYTES as usize;
