//! A source with samples that are made from its samples.
//!
//! 1. In its root is a directory [`DERIVED`] that no listing for readers has. In it is a directory for each recipe,
//!    which shows the directories of the source, and in them a file for each file that the recipe takes.
//! 2. A derived file has the times, the owner and the rights of its original. Its inode is made of that of the
//!    original, the original's size and the recipe. So another version of the original, or another recipe, gives another
//!    version.
//! 3. Its size is not known before it is made. The catalog has a guess until then.
//! 4. A read asks for the original's attributes. If these are still the ones that its version was made of, the original
//!    is read, and the file is made of its bytes ([`maker`]). All others who ask for the file meanwhile, or shortly
//!    afterwards, get the same bytes.
//! 5. If nothing can be made of an original, readers get `EIO`, and [`DerivedStatus`] has the reason.
//!
//! Everything else of a sample is as that of any other: it is prefetched, cached and stored by its path and version.
//! Links of the source are not shown.

mod maker;
mod quota;

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, mpsc};

pub use maker::{DerivedStatus, Failure};
use maker::{Made, Maker, Sample, Waiting};
use nix::errno::Errno;

use super::tree::hash;
use super::{
    Fingerprint, Kind, ReadError, ReadRequest, Source, SourceFailures, Stat, Urgency, is_certain,
};
use crate::derive::Recipe;
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::ids::BLOCK_BYTES;

/// The directory of derived samples in the root. Readers find it by its name alone.
pub const DERIVED: &str = ".derived";

/// How often a file is looked at if it changes each time.
const LOOKS: usize = 4;

/// A source with derived samples.
struct Derived {
    source: Arc<dyn Source>,
    recipes: Vec<Arc<Recipe>>,
    maker: Arc<Maker>,
}

/// What a path stands for.
enum Place<'a> {
    /// A name of the source itself.
    Source,
    /// The directory of all recipes.
    Top,
    /// A path below the directory of a recipe: the recipe's number, and the path in it.
    In(usize, &'a Path),
    /// A path that belongs to no recipe.
    Nowhere,
}

/// A source with samples that are made of its samples by these recipes. Without recipes it is the source itself. The
/// given source is asked for the originals. If it times its requests, it times those for originals, too.
///
/// # Errors
/// If the source does not tell the sizes of its files, or has a directory of that name itself.
pub fn with_derived(source: Arc<dyn Source>, recipes: &[Recipe]) -> UserResult<Arc<dyn Source>> {
    match recipes {
        [] => Ok(source),
        recipes => Ok(Arc::new(Derived::open(source, recipes)?)),
    }
}

impl Derived {
    /// A source with samples made by these recipes. The files of one of them have the number that it has here.
    ///
    /// # Errors
    /// If the source does not tell the sizes of its files, or has such a directory itself.
    fn open(source: Arc<dyn Source>, recipes: &[Recipe]) -> UserResult<Self> {
        let refuse = |what: &str| Error::new(ErrorKind::Source, what);
        if !source.tells_sizes() {
            return Err(refuse(
                "nothing can be derived: the sizes of the source's files are not known",
            )
            .hint("set source.size, or write the sizes into the manifest"));
        }
        match source.stat(Path::new(DERIVED)) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Ok(_) => {
                return Err(refuse("the source has a directory .derived itself")
                    .hint("rename it, or take [[derived]] out of the configuration"));
            }
            Err(errno) => {
                let what = format!("cannot look for .derived in the source: {}", errno.desc());
                return Err(refuse(&what));
            }
        }
        let recipes: Vec<Arc<Recipe>> = recipes.iter().cloned().map(Arc::new).collect();
        let maker = Maker::new(Arc::clone(&source), &recipes)?;
        Ok(Derived { source, recipes, maker })
    }

    fn place<'a>(&self, path: &'a Path) -> Place<'a> {
        let mut parts = path.components();
        if parts.next() != Some(Component::Normal(OsStr::new(DERIVED))) {
            return Place::Source;
        }
        let Some(name) = parts.next() else { return Place::Top };
        let is_it = |recipe: &Arc<Recipe>| OsStr::new(&recipe.name) == name.as_os_str();
        match self.recipes.iter().position(is_it) {
            Some(nth) => Place::In(nth, parts.as_path()),
            None => Place::Nowhere,
        }
    }

    /// The attributes of the directory of all recipes.
    fn top(root: Stat) -> Stat {
        let (device, inode) = root.identity;
        Stat { identity: (device, hash(&[b"derived", &inode.to_le_bytes()])), ..root }
    }

    /// The attributes of names in a directory of a recipe. The source may tell of all of them sooner than of each.
    fn look_at_all(
        &self,
        recipe: &Recipe,
        directory: &Path,
        names: &[OsString],
    ) -> Vec<Result<Stat, Errno>> {
        let original = |name: &OsString| original_of(recipe, Path::new(name));
        let asked: BTreeSet<OsString> = names
            .iter()
            .map(|name| original(name).map_or_else(|| name.clone(), PathBuf::into_os_string))
            .collect();
        let asked: Vec<OsString> = asked.into_iter().collect();
        let found = self.source.stat_all(directory, &asked);
        let paths = asked.iter().map(|name| directory.join(name));
        let known: HashMap<PathBuf, Result<Stat, Errno>> = paths.zip(found).collect();
        let stat = |path: &Path| match known.get(path) {
            Some(found) => *found,
            None => self.source.stat(path),
        };
        let kinds = OnceCell::new();
        let is_hidden = |name: &OsString| {
            let kinds = kinds.get_or_init(|| self.source.listed_kinds(directory));
            let original = original(name).map(PathBuf::into_os_string);
            let kind = original.and_then(|original| kinds.get(&original)).or(kinds.get(name));
            kind.is_some_and(|kind| !shows(recipe, &directory.join(name), *kind))
        };
        let one = |name: &OsString| match look(recipe, &directory.join(name), stat) {
            // The recipe does not show this name, so it is not there. The attributes of the name do not matter.
            Err(errno) if !is_certain(errno) && is_hidden(name) => Err(Errno::ENOENT),
            found => found,
        };
        names.iter().map(one).collect()
    }

    /// The kinds of the names that are shown in a directory of a recipe.
    fn shown_kinds(&self, recipe: &Recipe, directory: &Path) -> HashMap<OsString, Kind> {
        let kinds = self.source.listed_kinds(directory).into_iter();
        let shown = kinds.filter_map(|(mut name, kind)| {
            name.push(if kind == Kind::File { recipe.suffix() } else { "" });
            shows(recipe, &directory.join(&name), kind).then_some((name, kind))
        });
        shown.collect()
    }

    fn look_with(
        &self,
        path: &Path,
        stat: impl Fn(&Path) -> Result<Stat, Errno>,
    ) -> Result<Stat, Errno> {
        match self.place(path) {
            Place::Source => stat(path),
            Place::Top => Ok(Self::top(stat(Path::new(""))?)),
            Place::In(nth, path) => look(&self.recipes[nth], path, stat),
            Place::Nowhere => Err(Errno::ENOENT),
        }
    }

    /// The attributes of a path, with the size of a file. The file is made to find that out. Blocks.
    fn sized(
        &self,
        path: &Path,
        stat: impl Fn(&Path) -> Result<Stat, Errno>,
    ) -> Result<Stat, Errno> {
        for _ in 0..LOOKS {
            let found = self.look_with(path, &stat)?;
            let Place::In(nth, below) = self.place(path) else { return Ok(found) };
            if found.kind != Kind::File {
                return Ok(found);
            }
            let sample =
                self.sample(nth, below, &found.fingerprint(), true).ok_or(Errno::ENOENT)?;
            match self.size_of(sample) {
                Ok(size) => return Ok(found.with_size(size)),
                Err(ReadError::Source(errno)) => return Err(errno),
                // Its original has changed since.
                Err(ReadError::Changed) => {}
            }
        }
        Err(Errno::EIO)
    }

    fn size_of(&self, sample: Sample) -> Result<u64, ReadError> {
        let (send, size) = mpsc::channel();
        self.maker.ask(sample, Urgency::Demand, Waiting::Size(send));
        size.recv().unwrap_or(Err(ReadError::Source(Errno::EIO)))
    }

    /// The file of a recipe at a path.
    fn sample(
        &self,
        nth: usize,
        path: &Path,
        version: &Fingerprint,
        exact: bool,
    ) -> Option<Sample> {
        let recipe = &self.recipes[nth];
        let original = original_of(recipe, path)?.into();
        Some(Sample {
            nth,
            recipe: Arc::clone(recipe),
            original,
            version: version.without_size(),
            exact,
        })
    }

    /// The names that may be in a directory of a recipe. Some of them may turn out to stand for nothing. A derived file may
    /// have the name of another thing of the source, so names with the suffix that were `told` before are left out.
    fn names(
        recipe: &Recipe,
        directory: &Path,
        names: &[OsString],
        told: &mut HashSet<OsString>,
    ) -> Vec<OsString> {
        let suffix = recipe.suffix();
        if suffix.is_empty() {
            return names.to_vec();
        }
        let mut found = Vec::with_capacity(2 * names.len());
        for name in names {
            if recipe.from.chooses(&directory.join(name)) {
                let mut derived = name.clone();
                derived.push(suffix);
                found.push(derived);
            }
            found.push(name.clone());
        }
        let is_new = |name: &OsString| {
            !name.as_bytes().ends_with(suffix.as_bytes()) || told.insert(name.clone())
        };
        found.retain(is_new);
        found
    }
}

/// The path of the file from which a path in the directory of a recipe is made, if it is one of a file.
fn original_of(recipe: &Recipe, path: &Path) -> Option<PathBuf> {
    let bytes = path.as_os_str().as_bytes().strip_suffix(recipe.suffix().as_bytes())?;
    let is_name = !bytes.is_empty() && !bytes.ends_with(b"/");
    is_name.then(|| OsString::from_vec(bytes.to_vec()).into())
}

/// Whether a recipe shows something of this kind at a path in its directory.
fn shows(recipe: &Recipe, path: &Path, kind: Kind) -> bool {
    match kind {
        Kind::File => {
            original_of(recipe, path).is_some_and(|original| recipe.from.chooses(&original))
        }
        Kind::Directory => recipe.from.may_be_below(path),
        _ => false,
    }
}

/// The attributes of a path in the directory of a recipe, by those of the source's files.
fn look(
    recipe: &Recipe,
    path: &Path,
    stat: impl Fn(&Path) -> Result<Stat, Errno>,
) -> Result<Stat, Errno> {
    let Some(original) = original_of(recipe, path) else {
        return directory_of(recipe, path, stat(path)?);
    };
    match stat(&original) {
        Ok(found) if found.kind == Kind::File && recipe.from.chooses(&original) => {
            Ok(derived(recipe, &found))
        }
        Ok(found) if original == path => directory_of(recipe, path, found),
        Err(errno) if original == path || errno != Errno::ENOENT => Err(errno),
        // A directory may have such a name, too.
        Ok(_) | Err(_) => directory_of(recipe, path, stat(path)?),
    }
}

/// The attributes of what a recipe makes of a file.
fn derived(recipe: &Recipe, original: &Stat) -> Stat {
    let (device, inode) = original.identity;
    let parts = [recipe.key(), inode, original.size].map(u64::to_le_bytes);
    let inode = hash(&[&parts[0], &parts[1], &parts[2]]);
    // Copies are found by the first block of a sample, and tell its size. Nothing is to be asked of others before.
    let guess = recipe.guess(original.size).min(BLOCK_BYTES);
    let identity = (device, inode);
    Stat { identity, is_sized: false, version_has_size: false, ..original.with_size(guess) }
}

/// The attributes of a directory as a recipe shows it.
fn directory_of(recipe: &Recipe, path: &Path, found: Stat) -> Result<Stat, Errno> {
    if found.kind != Kind::Directory || !recipe.from.may_be_below(path) {
        return Err(Errno::ENOENT);
    }
    let (device, inode) = found.identity;
    let parts = [recipe.key().to_le_bytes(), inode.to_le_bytes()];
    Ok(Stat { identity: (device, hash(&[b"directory", &parts[0], &parts[1]])), ..found })
}

impl Source for Derived {
    fn lasting_identity(&self) -> u128 {
        self.source.lasting_identity()
    }

    fn tree_identity(&self) -> u128 {
        let one = |recipe: &Arc<Recipe>| {
            let from = format!("{:?}", recipe.from);
            hash(&[recipe.name.as_bytes(), from.as_bytes(), &recipe.key().to_le_bytes()])
        };
        let all = self.recipes.iter().map(one).fold(0, u64::wrapping_add);
        self.source.tree_identity() ^ u128::from(all)
    }

    fn is_hedged(&self) -> bool {
        self.source.is_hedged()
    }

    fn overloads(&self) -> u64 {
        self.source.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        self.source.failures()
    }

    fn tells_sizes(&self) -> bool {
        false
    }

    fn unlisted(&self) -> Option<&'static str> {
        Some(DERIVED)
    }

    fn derived(&self) -> Vec<DerivedStatus> {
        self.maker.status()
    }

    fn asks_one_by_one(&self) -> bool {
        self.source.asks_one_by_one()
    }

    fn list_in_parts(&self, path: &Path, each: &mut dyn FnMut(&[OsString])) -> Result<(), Errno> {
        match self.place(path) {
            Place::Source if path.as_os_str().is_empty() => {
                self.source.list_in_parts(path, &mut |names| {
                    // Such a name may come to the source during the mount.
                    let others = names.iter().filter(|name| *name != DERIVED);
                    each(&others.cloned().collect::<Vec<_>>());
                })?;
                each(&[DERIVED.into()]);
                Ok(())
            }
            Place::Source => self.source.list_in_parts(path, each),
            Place::Top => {
                let names: Vec<OsString> =
                    self.recipes.iter().map(|recipe| OsString::from(&recipe.name)).collect();
                each(&names);
                Ok(())
            }
            Place::In(nth, below) => {
                let recipe = &self.recipes[nth];
                if !recipe.from.may_be_below(below) {
                    return Err(Errno::ENOENT);
                }
                let mut told = HashSet::new();
                self.source.list_in_parts(below, &mut |names| {
                    each(&Self::names(recipe, below, names, &mut told));
                })
            }
            Place::Nowhere => Err(Errno::ENOENT),
        }
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        self.sized(path, |path| self.source.stat(path))
    }

    fn stat_anew(&self, path: &Path) -> Result<Stat, Errno> {
        self.sized(path, |path| self.source.stat_anew(path))
    }

    fn stat_all(&self, path: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        match self.place(path) {
            Place::Source if !path.as_os_str().is_empty() => self.source.stat_all(path, names),
            Place::Source => {
                let of_source: Vec<OsString> =
                    names.iter().filter(|name| *name != DERIVED).cloned().collect();
                let mut found = self.source.stat_all(path, &of_source).into_iter();
                let one = |name: &OsString| match name == DERIVED {
                    true => self.look_with(Path::new(DERIVED), |path| self.source.stat(path)),
                    false => found.next().unwrap_or(Err(Errno::EIO)),
                };
                names.iter().map(one).collect()
            }
            Place::In(nth, below) => self.look_at_all(&self.recipes[nth], below, names),
            Place::Top | Place::Nowhere => {
                let stat = |path: &Path| self.source.stat(path);
                names.iter().map(|name| self.look_with(&path.join(name), stat)).collect()
            }
        }
    }

    fn listed_kinds(&self, directory: &Path) -> HashMap<OsString, Kind> {
        match self.place(directory) {
            Place::Source => self.source.listed_kinds(directory),
            Place::In(nth, below) => self.shown_kinds(&self.recipes[nth], below),
            Place::Top | Place::Nowhere => HashMap::new(),
        }
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        match self.place(path) {
            Place::Source => self.source.read_link(path),
            _ => Err(Errno::EINVAL),
        }
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        match self.place(path) {
            Place::Source => self.source.list_xattrs(path),
            _ => Ok(Vec::new()),
        }
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        match self.place(path) {
            Place::Source => self.source.xattr(path, name),
            _ => Err(Errno::ENODATA),
        }
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.source.space()
    }

    fn lie_behind(&self, directory: &Path, names: &[OsString]) -> Option<Vec<bool>> {
        match self.place(directory) {
            Place::Source => self.source.lie_behind(directory, names),
            _ => Some(vec![false; names.len()]),
        }
    }

    fn close_idle(&self) {
        self.source.close_idle();
        self.maker.forget_idle();
    }

    fn keep(&self, path: &Path, version: Fingerprint, bytes: Vec<u8>) {
        if let Place::In(nth, below) = self.place(path)
            && let Some(sample) = self.sample(nth, below, &version, true)
        {
            self.maker.keep(sample.version, bytes);
        }
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        let mut of_source = Vec::new();
        for request in requests {
            let Place::In(nth, below) = self.place(&request.path) else {
                of_source.push(request);
                continue;
            };
            let sample = self.sample(nth, below, &request.fingerprint, request.exact);
            let ReadRequest { urgency, is_sized, offset, length, fingerprint, deliver, .. } =
                request;
            let size = is_sized.then(|| fingerprint.size());
            let deliver = move |made: Made| deliver(part(made, size, offset, length));
            let waiting = Waiting::Delivery(Box::new(deliver));
            match sample {
                Some(sample) => self.maker.ask(sample, urgency, waiting),
                None => self.maker.refuse(urgency, waiting),
            }
        }
        if !of_source.is_empty() {
            self.source.read(of_source);
        }
    }
}

/// The bytes that were asked for. Without a size all are.
fn part(made: Made, size: Option<u64>, offset: u64, length: usize) -> Result<Vec<u8>, ReadError> {
    let bytes = made?;
    if size.is_some_and(|size| size != bytes.len() as u64) {
        return Err(ReadError::Changed);
    }
    if size.is_none() || (offset == 0 && length == bytes.len()) {
        return Ok(Arc::unwrap_or_clone(bytes));
    }
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let found = bytes.get(start..start.saturating_add(length));
    found.map(<[u8]>::to_vec).ok_or(ReadError::Changed)
}

#[cfg(test)]
mod tests;
