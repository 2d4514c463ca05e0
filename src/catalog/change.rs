//! How the rows follow what the source turns out to have.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::Changes;
use super::node::NodeId;
use super::row::State;
use super::tree::{Children, Tree, content};
use crate::ids::FileId;
use crate::source::{Kind, Stat};

impl Tree {
    /// Takes what the source says of a row now. Says whether it is another version.
    pub(super) fn update(&mut self, file: FileId, stat: &Stat, changes: &mut Changes) -> bool {
        let before = self.stat(file);
        let mut stat = *stat;
        let [was, is] = [before, stat].map(|stat| stat.fingerprint());
        if self.immutable && stat.kind == Kind::File && is.is_content_of(&was) {
            // What is known of the content goes on to be, by the time that it is known by.
            stat.ctime_ns = before.ctime_ns;
        }
        let same = was == stat.fingerprint() && !self.is_unsettled(file);
        self.set(file, &stat);
        if same {
            return false;
        }
        if let Some(directory) = self.directory_mut(file) {
            // A directory is no content: its names are compared, its node stays.
            directory.current = false;
            return true;
        }
        self.renew(file, content(&before) != content(&stat));
        let parent = self.row(file).parent;
        changes.changed.push(file);
        changes.names.push((self.node(parent), self.name(file).to_os_string()));
        if content(&before) != content(&stat) {
            Arc::make_mut(&mut self.layout).resize(file, content(&stat));
        }
        true
    }

    /// Whether what a name stands for now is not its row's thing: another kind, or another file
    /// where the row's own may still be there by another name.
    fn is_another(&self, entry: FileId, stat: &Stat) -> bool {
        let before = self.stat(self.target(entry));
        let joins = self.is_unsure(entry) && self.is_known_link(stat);
        let shared = || self.is_shared(entry) && before.identity != stat.identity;
        before.kind != stat.kind || joins || shared()
    }

    /// Whether the file that a name stands for has another name in the tree.
    pub(super) fn is_shared(&self, entry: FileId) -> bool {
        entry != self.target(entry) || self.aliases_of(entry).next().is_some()
    }

    /// The rows of a file's other names.
    pub(super) fn aliases_of(&self, file: FileId) -> impl Iterator<Item = FileId> + '_ {
        let others = self.other_names.get(&file).into_iter().flatten().copied();
        others.filter(|row| self.row(*row).state == State::Alias)
    }

    /// A directory's names, to be changed.
    fn list_mut(&mut self, directory: FileId) -> Option<&mut Vec<FileId>> {
        let children = &mut self.directory_mut(directory)?.children;
        if let Children::Run(..) = children {
            *children = Children::List(children.iter().collect());
        }
        match children {
            Children::List(rows) => Some(rows),
            _ => None,
        }
    }

    /// Where a name is in a directory, and the row that is the name's own.
    fn find(&self, directory: FileId, name: &OsStr) -> Option<(usize, FileId)> {
        let children = &self.directory(directory)?.children;
        let index = self.place(children, name).ok()?;
        Some((index, children.at(index)))
    }

    /// As [`update`](Self::update), by a name, which was looked at just now.
    fn look_again(&mut self, entry: FileId, stat: &Stat, now: u32, changes: &mut Changes) -> bool {
        let file = self.target(entry);
        let changed = self.update(file, stat, changes);
        self.seen(entry, now);
        if changed {
            self.seen(file, now);
        }
        changed
    }

    /// A name that is known has been looked at again.
    pub(super) fn found(
        &mut self,
        parent: NodeId,
        name: &OsStr,
        stat: &Stat,
        now: u32,
        changes: &mut Changes,
    ) {
        let Ok(directory) = self.resolve(parent) else { return };
        let Some((index, entry)) = self.find(directory, name) else { return };
        if !self.is_another(entry, stat) {
            if self.look_again(entry, stat, now, changes) {
                self.go_by(entry);
            }
            return;
        }
        let Some(file) = self.add(directory, name, stat, now) else { return };
        changes.added = true;
        changes.names.push((parent, name.to_os_string()));
        if let Some(rows) = self.list_mut(directory) {
            rows[index] = file;
        }
        self.vanish(vec![entry], changes);
    }

    /// A name is gone.
    pub(super) fn remove(&mut self, parent: NodeId, name: &OsStr, changes: &mut Changes) {
        let Ok(directory) = self.resolve(parent) else { return };
        let Some((index, entry)) = self.find(directory, name) else { return };
        if let Some(rows) = self.list_mut(directory) {
            rows.remove(index);
        }
        changes.names.push((parent, name.to_os_string()));
        self.vanish(vec![entry], changes);
    }

    /// Takes rows of names that are no longer there, with all that is below them. A file's row
    /// lives on by another name of the file, or is gone.
    fn vanish(&mut self, entries: Vec<FileId>, changes: &mut Changes) {
        let (mut entries, mut lost) = (entries, Vec::new());
        while let Some(entry) = entries.pop() {
            let state = &mut self.row_mut(entry).state;
            if std::mem::replace(state, State::Gone) != State::There {
                continue;
            }
            lost.push(entry);
            if let Some(directory) = self.directory_mut(entry) {
                directory.current = false;
                let below = std::mem::replace(&mut directory.children, Children::Unread);
                entries.extend(below.iter());
            }
        }
        // Only now is it known which names are left.
        for file in lost {
            if !self.take_other_name(file) {
                changes.changed.push(file);
                changes.removed = true;
            }
        }
    }

    /// Has a file go by the name that a row leads to it by: the name that it went by may be gone.
    pub(super) fn go_by(&mut self, alias: FileId) {
        let file = self.target(alias);
        if file == alias {
            return;
        }
        let [a, b] = [alias, file].map(|row| (self.row(row).parent, self.row(row).name));
        for (row, (parent, name)) in [(alias, b), (file, a)] {
            let row = self.row_mut(row);
            (row.parent, row.name) = (parent, name);
        }
        let now = self.checked(alias);
        self.seen(alias, self.checked(file));
        self.seen(file, now);
        let directories = if a.0 == b.0 { vec![a.0] } else { vec![a.0, b.0] };
        for directory in directories {
            for row in self.list_mut(directory).into_iter().flatten() {
                match *row {
                    found if found == alias => *row = file,
                    found if found == file => *row = alias,
                    _ => {}
                }
            }
        }
    }

    /// Has a file go by another of its names, if it has one.
    fn take_other_name(&mut self, file: FileId) -> bool {
        let mut others: Vec<FileId> = self.aliases_of(file).collect();
        self.other_names.remove(&file);
        let Some(alias) = others.pop() else { return false };
        self.other_names.insert(file, others);
        let (parent, name) = (self.row(alias).parent, self.row(alias).name);
        self.row_mut(alias).state = State::Gone;
        let row = self.row_mut(file);
        (row.parent, row.name, row.state) = (parent, name, State::There);
        self.seen(file, self.checked(alias));
        if let Some(rows) = self.list_mut(parent)
            && let Some(slot) = rows.iter_mut().find(|row| **row == alias)
        {
            *slot = file;
        }
        true
    }

    /// Takes a directory's names as they were at a tick, in the version that its row has. Those that
    /// were known need not tell what they are now. Returns names that have been seen since: they are
    /// left as they are.
    pub(super) fn relist(
        &mut self,
        directory: FileId,
        mut found: Vec<(OsString, Option<Stat>)>,
        now: u32,
        changes: &mut Changes,
    ) -> Vec<OsString> {
        if !self.is_there(directory) {
            return Vec::new();
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let parent = self.node(directory);
        let Some(known) = self.directory_mut(directory) else { return Vec::new() };
        let before = std::mem::replace(&mut known.children, Children::Unread);
        let mut left = before.iter().peekable();
        let (mut missing, mut told, mut whole) = (Vec::new(), false, true);
        let mut children = Vec::with_capacity(found.len());
        for (name, stat) in found {
            while let Some(row) = left.next_if(|row| self.name(*row) < name.as_os_str()) {
                missing.push(row);
            }
            if let Some(row) = left.next_if(|row| self.name(*row) == name.as_os_str()) {
                children.push(row);
                continue;
            }
            let Some(stat) = stat else {
                // Gone since it was looked for: the names are to be read again.
                whole = false;
                continue;
            };
            // Whoever has listed the directory must list it again.
            if !std::mem::replace(&mut told, true) {
                changes.names.push((parent, name.clone()));
            }
            changes.added = true;
            children.extend(self.add(directory, &name, &stat, now));
        }
        missing.extend(left);
        let (lost, late): (Vec<FileId>, Vec<FileId>) =
            missing.into_iter().partition(|row| self.checked(*row) < now);
        children.extend(&late);
        children.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        self.set_children(directory, Children::of(children));
        if let Some(known) = self.directory_mut(directory) {
            known.current = whole;
        }
        changes.names.extend(lost.iter().map(|row| (parent, self.name(*row).to_os_string())));
        self.vanish(lost, changes);
        late.into_iter().map(|row| self.name(row).to_os_string()).collect()
    }
}
