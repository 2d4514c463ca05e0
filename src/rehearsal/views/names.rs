//! Lookups and listings: which nodes the names lead to.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::errno::Errno;

use super::place::{self, Place};
use super::slots::Class;
use super::{Display, Entry, EntryKind, Exhibit, STREAMS, View, Views, directory, sample, scores};
use crate::fs::{Access, NAME_MAX, VIEWS_NAME};
use crate::rehearsal::notes::Note;

/// Names in the directory of a buffer that are not displays.
const OWN: [&str; 4] = ["slots", "stream", "scores", "latent"];

type Found = Box<dyn FnOnce(Result<Entry, Errno>) + Send>;

impl Views {
    /// Looks up a name for a task. The kernel knows the node until it [forgets](Self::forget) it.
    pub fn lookup(
        self: &Arc<Self>,
        parent: u64,
        name: &OsStr,
        task: u32,
        reply: impl FnOnce(Result<Entry, Errno>) + Send + 'static,
    ) {
        if name.len() > NAME_MAX {
            return reply(Err(Errno::ENAMETOOLONG));
        }
        let Some(name) = name.to_str() else { return reply(Err(Errno::ENOENT)) };
        match Place::of(parent) {
            Some(Place::Buffer(buffer)) if !OWN.contains(&name) => {
                self.lookup_view(buffer, View::of(name), task, Box::new(reply));
            }
            Some(Place::Streams(buffer)) => {
                let view = View::of(&format!("{STREAMS}{name}"));
                self.lookup_view(buffer, view, task, Box::new(reply));
            }
            Some(Place::Slots(buffer)) => {
                self.lookup_slot((buffer, None), name, task, Box::new(reply));
            }
            Some(Place::SlotClass(buffer, class)) => {
                self.lookup_slot((buffer, Some(class)), name, task, Box::new(reply));
            }
            // The binding of an ordinal is written before the answer.
            Some(place @ Place::Display(slot)) if self.stream(slot).is_some() => {
                let name = name.to_owned();
                self.on_disk(task, reply, move |views| views.lookup_known(place, &name));
            }
            Some(place) => reply(self.lookup_known(place, name)),
            None => reply(Err(Errno::ENOENT)),
        }
    }

    fn lookup_view(self: &Arc<Self>, buffer: usize, view: Option<View>, task: u32, reply: Found) {
        let Some(view) = view.filter(|_| buffer < self.buffers.len()) else {
            return reply(Err(Errno::ENOENT));
        };
        let entry = move |slot| directory(Place::Display(slot));
        let found = {
            let mut state = self.state.lock();
            let slot = state.places.get(&(buffer, view)).copied();
            // A lookup counts as a look.
            slot.filter(|slot| state.look(*slot).is_some())
        };
        if let Some(slot) = found {
            return reply(Ok(entry(slot)));
        }
        if matches!(view, View::Sleep(_)) {
            return reply(Err(Errno::ENOENT));
        }
        let (views, reply) = (Arc::clone(self), self.awaited(task, reply));
        let made = move |display: Option<Display>| {
            let slot = display.map(|display| views.keep(buffer, view, display));
            reply.answer(slot.map(entry).ok_or(Errno::EIO));
        };
        self.tell(Note::Make { buffer, view, made: Box::new(made) });
    }

    fn lookup_slot(
        self: &Arc<Self>,
        (buffer, class): (usize, Class),
        name: &str,
        task: u32,
        reply: Found,
    ) {
        if let Some(entry) = self.slot(buffer, class, name) {
            // No request waits for this.
            if self.slots.lock().claim_renewal(buffer) {
                self.renew(buffer, |_| ());
            }
            return reply(Ok(entry));
        }
        if self.slots.lock().is_current(buffer) {
            return reply(Err(Errno::ENOENT));
        }
        let (name, reply) = (name.to_owned(), self.awaited(task, reply));
        self.renew(buffer, move |views| {
            reply.answer(views.slot(buffer, class, &name).ok_or(Errno::ENOENT));
        });
    }

    /// Has slots use the samples that a buffer holds now, and then calls `then`.
    fn renew(self: &Arc<Self>, buffer: usize, then: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let changes = self.buffers.get(buffer).map(|view| view.changes.load(Ordering::Acquire));
        let views = Arc::clone(self);
        let made = move |held: Option<Display>| {
            views.slots.lock().renew(buffer, changes, held.as_ref());
            then(&views);
        };
        self.tell(Note::Show { buffer, shown: Box::new(made) });
    }

    fn slot(&self, buffer: usize, class: Class, name: &str) -> Option<Entry> {
        let mut slots = self.slots.lock();
        if class.is_none()
            && let Some(class) = slots.class(buffer, name)
        {
            return Some(directory(Place::SlotClass(buffer, class)));
        }
        if !slots.has(buffer, name) {
            return None;
        }
        let (node, dealt) = slots.deal(buffer, class, Instant::now())?;
        let entry = sample(node, &dealt.sample, false);
        let upcoming = slots.first_upcoming(buffer, class);
        drop(slots);
        upcoming.iter().for_each(|upcoming| self.ahead.read(upcoming));
        Some(entry)
    }

    fn lookup_known(&self, parent: Place, name: &str) -> Result<Entry, Errno> {
        let place = match parent {
            Place::Root => self.place(name).map(Place::Buffer),
            Place::Buffer(buffer) => match name {
                "scores" => Some(Place::Scores(buffer)),
                "stream" => Some(Place::Streams(buffer)),
                "latent" => self.latent(buffer),
                _ => Some(Place::Slots(buffer)),
            },
            Place::Latent(buffer) => return self.lookup_code(buffer, name),
            Place::Display(slot) => {
                if let Some(stream) = self.stream(slot) {
                    let (file, bound) = stream.lookup(slot, name)?;
                    if bound {
                        self.tell_stream(slot);
                    }
                    return self.entry(file.node());
                }
                let display = self.display(slot)?;
                let found = display.classes.binary_search_by(|(class, _)| class.as_str().cmp(name));
                found.ok().map(|class| Place::Class(slot, class))
            }
            Place::Class(slot, class) => {
                let display = self.display(slot)?;
                let (_, files) = display.classes.get(class).ok_or(Errno::ENOENT)?;
                let found = files.binary_search_by(|file| file.name.as_str().cmp(name));
                found.ok().map(|file| Place::File(slot, class, file))
            }
            _ => None,
        };
        self.entry(place.ok_or(Errno::ENOENT)?.node())
    }

    pub fn list(
        self: &Arc<Self>,
        node: u64,
        task: u32,
        reply: impl FnOnce(Result<Vec<(String, Entry)>, Errno>) + Send + 'static,
    ) {
        match Place::of(node) {
            // A listing shows the present classes.
            Some(Place::Slots(buffer)) => {
                let reply = self.awaited(task, reply);
                self.renew(buffer, move |views| {
                    reply.answer(Ok(views.list_slots(buffer, None)));
                });
            }
            Some(Place::SlotClass(buffer, class)) => {
                reply(Ok(self.list_slots(buffer, Some(class))));
            }
            Some(place) => reply(self.list_known(place)),
            None => reply(Err(Errno::ENOENT)),
        }
    }

    /// The names of slots. A sample is dealt when one is looked up.
    fn list_slots(&self, buffer: usize, class: Class) -> Vec<(String, Entry)> {
        let mut slots = self.slots.lock();
        let kind = EntryKind::File(0, Access::default());
        let unknown = Entry { node: place::DEALT, kind, lasting: false };
        let names = slots.names(buffer, class).into_iter().map(|name| (name, unknown));
        let mut listed: BTreeMap<String, Entry> = names.collect();
        // If samples have no extension, a class may have the name of a slot, and goes first.
        let classes = if class.is_none() { slots.classes(buffer) } else { Vec::new() };
        listed.extend(classes.into_iter().map(|(name, place)| {
            let place = Place::SlotClass(buffer, place);
            (name, directory(place))
        }));
        listed.into_iter().collect()
    }

    fn list_known(&self, place: Place) -> Result<Vec<(String, Entry)>, Errno> {
        let entry = |name: &str, place: Place| (name.to_owned(), directory(place));
        Ok(match place {
            Place::Root => {
                let buffers = self.buffers.iter().enumerate();
                buffers.map(|(at, buffer)| entry(&buffer.name, Place::Buffer(at))).collect()
            }
            Place::Buffer(buffer) => {
                let state = self.state.lock();
                let own = state.places.iter().filter(|((of, _), _)| *of == buffer);
                let views = own.map(|((_, view), slot)| entry(&view.name(), Place::Display(*slot)));
                let views = views.filter(|(name, _)| !name.starts_with(STREAMS));
                let directories =
                    [entry("slots", Place::Slots(buffer)), entry("stream", Place::Streams(buffer))];
                let latent = self.latent(buffer).map(|place| entry("latent", place));
                let scores = ("scores".to_owned(), scores(buffer));
                views.chain(directories).chain(latent).chain([scores]).collect()
            }
            Place::Latent(buffer) => Self::list_codes(buffer),
            Place::Streams(buffer) => {
                let state = self.state.lock();
                let own = state.places.iter().filter(|((of, _), _)| *of == buffer);
                let epoch = |((_, view), slot): (&(usize, View), &usize)| {
                    Some(entry(view.name().strip_prefix(STREAMS)?, Place::Display(*slot)))
                };
                own.filter_map(epoch).collect()
            }
            Place::Display(slot) => {
                if let Some(stream) = self.stream(slot) {
                    return Ok(stream.list(slot));
                }
                let display = self.display(slot)?;
                let classes = display.classes.iter().enumerate();
                classes.map(|(at, (name, _))| entry(name, Place::Class(slot, at))).collect()
            }
            Place::Class(slot, class) => {
                let display = self.display(slot)?;
                let (_, files) = display.classes.get(class).ok_or(Errno::ENOENT)?;
                let entry = |(at, exhibit): (usize, &Exhibit)| {
                    let node = Place::File(slot, class, at).node();
                    (exhibit.name.clone(), self.shows(node, exhibit))
                };
                files.iter().enumerate().map(entry).collect()
            }
            _ => return Err(Errno::ENOTDIR),
        })
    }

    /// The buffer in a path of a view's file: if there is one of this name, or if it is below `rehearsal`.
    pub fn buffer_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut parts = path.rsplitn(4, '/').skip(1);
        let (above, top, before) = (parts.next()?, parts.next()?, parts.next()?);
        View::of(top).or_else(|| View::of(&format!("{top}/{above}")))?;
        let mut before = before.rsplit('/').filter(|part| !part.is_empty() && *part != ".");
        let name = before.next()?;
        let is_one = self.place(name).is_some() || before.next() == Some(VIEWS_NAME);
        is_one.then_some(name)
    }

    /// The path within the dataset of a view's file, which ends in `VIEW/CLASS/FILE` or `stream/K/ORDINAL`.
    pub fn source(&self, buffer: usize, path: &str) -> Option<String> {
        let mut parts = path.rsplitn(4, '/');
        let (file, above, top) = (parts.next()?, parts.next()?, parts.next()?);
        let slot = |view| self.state.lock().places.get(&(buffer, view)).copied();
        let node = if let Some(view) = View::of(&format!("{top}/{above}")) {
            let slot = slot(view)?;
            self.stream(slot)?.found(slot, file)?.node()
        } else {
            let view = Place::Display(slot(View::of(top)?)?);
            let class = self.lookup_known(view, above).ok()?;
            self.lookup_known(Place::of(class.node)?, file).ok()?.node
        };
        self.label(node).ok().map(|(_, source)| source)
    }
}
