//! Gives orders to the streams of an engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::budgets::Budgets;
use super::catalog_keeper::CatalogKeeper;
use super::serving::Serving;
use super::status::OrderStatus;
use super::view_orders::ViewOrders;
use super::{Core, Wings};
use super::{neighbours, slices};
use crate::catalog::{Catalog, with_listing};
use crate::cluster::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::VIEWS_NAME;
use crate::ids::StreamId;
use crate::input::{self, Limits};
use crate::learning::{LEARNT, Learning, StreamInfo, Streams, stream};
use crate::order::spec::FilePurpose;
use crate::order::{Listing, Order, OrderSpec};
use crate::plan::{Event, Published, StreamStatus};
use crate::rehearsal::views::View;
use crate::rehearsal::{Rehearsal, ViewListing};

/// The spec that is shown for an order that came as a list.
const WRITTEN: &str = "written";

/// An order that has been resolved for a stream and is not followed yet.
pub struct ResolvedOrder {
    stream: StreamId,
    name: String,
    order: Order,
    /// The files of the rehearsal view that it is over, if it is over one.
    view: Option<ViewListing>,
}

/// Reads the files that an order names, and resolves the order. Pipes are read as well: this is for a
/// command, which may wait for their writers.
///
/// # Errors
/// If a file cannot be read, or the order is wrong. The error names the line.
pub fn resolve(spec: &str, listing: &Listing<'_>) -> Result<Order> {
    resolve_within(spec, listing, |limits| limits)
}

/// The same for a daemon, which has `memory` bytes for a file and does not wait for a pipe.
fn resolve_here(spec: &str, listing: &Listing<'_>, memory: usize) -> Result<Order> {
    resolve_within(spec, listing, |limits| limits.for_daemon(memory))
}

fn resolve_within(
    spec: &str,
    listing: &Listing<'_>,
    limits: impl Fn(Limits) -> Limits,
) -> Result<Order> {
    let spec: OrderSpec = spec.parse()?;
    let mut contents = Vec::new();
    for (path, purpose) in spec.files_needed() {
        let usual = match purpose {
            FilePurpose::Order => Limits::ORDER,
            FilePurpose::Manifest => Limits::MANIFEST,
            FilePurpose::Weights => Limits::WEIGHTS,
        };
        let read = input::read(path, &limits(usual));
        contents.push(read.map_err(|error| {
            error.or_hint("paths of order files are absolute, or relative to where `belady` is run")
        })?);
    }
    let contents: Vec<&[u8]> = contents.iter().map(Vec::as_slice).collect();
    spec.resolve(listing, &contents)
}

/// Extends the error of an order that may miss files, because directories could not be read.
pub fn tell_unreadable(catalog: &Catalog, source: &Path, spec: &str, error: Error) -> Error {
    let root = spec.parse().map_or(String::new(), |s: OrderSpec| s.filter.directory().to_owned());
    let Some((path, errno, count)) = catalog.unreadable(Path::new(&root)) else { return error };
    let at = source.join(path);
    let others = match count {
        1 => String::new(),
        2 => " (and 1 other directory)".into(),
        _ => format!(" (and {} other directories)", count - 1),
    };
    let message =
        format!("{}{others} cannot be read: {}; {}", at.display(), errno.desc(), error.message());
    Error::new(error.kind(), message).hint(
        "have the directory readable and searchable (`chmod u+rx`, or its group's) for the user who \
         runs belady, or give root= another one",
    )
}

pub struct Orders {
    core: Arc<Core>,
    keeper: Arc<CatalogKeeper>,
    serving: Arc<Serving>,
    budgets: Arc<Budgets>,
    streams: Streams,
    pub(super) learning: Option<Arc<Learning>>,
    rehearsal: Option<Arc<Rehearsal>>,
    /// The orders that are over rehearsal views.
    pub(super) views: Arc<ViewOrders>,
}

impl Orders {
    pub(super) fn new(
        keeper: &Arc<CatalogKeeper>,
        serving: &Arc<Serving>,
        budgets: &Arc<Budgets>,
        streams: Streams,
        wings: &Wings,
    ) -> Self {
        Orders {
            core: Arc::clone(serving.core()),
            keeper: Arc::clone(keeper),
            serving: Arc::clone(serving),
            budgets: Arc::clone(budgets),
            streams,
            learning: wings.learning.clone(),
            rehearsal: wings.rehearsal.clone(),
            views: Arc::new(ViewOrders::new()),
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Gives a stream its order. A new name makes a new stream. Returns the order in plain words.
    ///
    /// # Errors
    /// If the order is wrong. The stream keeps the order that it had.
    pub fn set(&self, name: &str, spec: &str) -> Result<String> {
        self.resolve_spec(name, spec, &self.serving.points()).map(|order| self.follow(order))
    }

    /// Gives a stream the order that the text of an order file lists.
    pub fn set_list(&self, name: &str, text: &[u8]) -> Result<String> {
        let written: OrderSpec = "file:written".parse()?;
        let resolve = |listing: &Listing<'_>| written.resolve(listing, &[text]);
        self.resolve_for(name, WRITTEN, &self.serving.points(), None, resolve)
            .map(|order| self.follow(order))
    }

    /// Resolves an order that a stream is to [`follow`](Self::follow) later, for example once the mount
    /// serves. Paths may begin with the source's path or a mount point.
    pub fn resolve_spec(
        &self,
        name: &str,
        spec: &str,
        mountpoints: &[PathBuf],
    ) -> Result<ResolvedOrder> {
        let (view, memory) = (self.view_of(spec), self.budgets.room_for_a_request());
        self.resolve_for(name, spec, mountpoints, view, |listing| {
            resolve_here(spec, listing, memory)
        })
    }

    /// The files of the rehearsal view that an order is over; `None` if it is over the dataset.
    fn view_of(&self, spec: &str) -> Option<ViewListing> {
        let spec: OrderSpec = spec.parse().ok()?;
        self.rehearsal.as_ref()?.view_listing(&spec.filter.root)
    }

    fn resolve_for(
        &self,
        name: &str,
        given: &str,
        mountpoints: &[PathBuf],
        view: Option<ViewListing>,
        resolve: impl Fn(&Listing<'_>) -> Result<Order>,
    ) -> Result<ResolvedOrder> {
        if name.starts_with(LEARNT) {
            let message = format!("stream {name}: such names are for what belady learns itself");
            return Err(Error::new(ErrorKind::Order, message));
        }
        self.keeper.await_scan()?;
        let stream = stream(&self.streams, name)?;
        let of = |listing: &Listing<'_>| match &view {
            Some(view) => resolve(&view.added_to(listing)),
            None => resolve(listing),
        };
        let list =
            || with_listing(&self.core.catalog, mountpoints, Some(&self.core.source_path), of);
        let mut resolved = list();
        if resolved.is_err() && self.keeper.is_unchecked() {
            // The order may be of files that came since an earlier mount.
            self.keeper.check_catalog(self.core.settings.source.scan_threads);
            resolved = list();
        }
        let mut streams = self.streams.lock();
        let info = &mut streams[stream.index()];
        match resolved {
            Ok(order) => {
                (info.spec, info.refused) = (Some(given.to_string()), None);
                Ok(ResolvedOrder { stream, name: name.to_string(), order, view })
            }
            Err(error) => {
                let error =
                    tell_unreadable(&self.core.catalog, &self.core.source_path, given, error);
                info.refused = Some(error.to_string());
                Err(error.context(format!("stream {name}")))
            }
        }
    }

    /// Has a stream follow an order. Returns the order in plain words.
    pub fn follow(&self, resolved: ResolvedOrder) -> String {
        let ResolvedOrder { stream, name, order, view } = resolved;
        let words = order.describe().to_string();
        tracing::info!(stream = name, order = words, "order received");
        let order = Arc::new(order);
        if let Some(learning) = &self.learning {
            learning.received(stream, &order);
        }
        self.views.follow(stream, &order, view);
        neighbours::note(&self.core);
        slices::cut_along(&self.core, &order, self.budgets.ram_status(0).budget);
        self.core.inbox.put(Event::Ordered { stream, order }, None);
        words
    }

    /// Gives all streams their orders again, since files came or went.
    pub(super) fn renew(&self) {
        self.renew_of(|_| true);
    }

    /// Gives the orders again that are over a mix of this rehearsal buffer: a new task has other files.
    pub(super) fn renew_of_task(&self, buffer: &str) {
        let views = format!("{VIEWS_NAME}/{buffer}/");
        self.renew_of(|spec| {
            let spec: Result<OrderSpec> = spec.parse();
            let root = spec.as_ref().ok().and_then(|s| s.filter.directory().strip_prefix(&views));
            matches!(root.and_then(View::parse), Some(View::Mix(_) | View::TaskMix))
        });
    }

    fn renew_of(&self, is_due: impl Fn(&str) -> bool) {
        let given: Vec<(String, String)> = self
            .streams
            .lock()
            .iter()
            .filter(|stream| !stream.is_learnt())
            .filter_map(|stream| Some((stream.name.clone(), stream.spec.clone()?)))
            .filter(|(_, spec)| spec != WRITTEN && is_due(spec))
            .collect();
        for (name, spec) in given {
            if let Err(error) = self.set(&name, &spec) {
                tracing::warn!(stream = name, %error, "the order does not fit the files any more");
            }
        }
    }

    pub fn withdraw(&self, name: &str) -> Result<()> {
        let mut streams = self.streams.lock();
        let given = |stream: &StreamInfo| stream.name == name && !stream.is_learnt();
        let Some(index) = streams.iter().position(given) else {
            return Err(Error::new(ErrorKind::Order, format!("there is no stream {name}")));
        };
        streams[index].spec = None;
        drop(streams);
        let stream = StreamId(index as u16);
        if let Some(learning) = &self.learning {
            learning.withdrawn(stream);
        }
        self.views.withdraw(stream);
        self.core.inbox.put(Event::Withdrawn { stream }, None);
        Ok(())
    }

    /// Whether any stream has been told an order.
    pub(super) fn has_told_order(&self) -> bool {
        self.streams.lock().iter().any(|stream| !stream.is_learnt() && stream.spec.is_some())
    }

    /// A reader on another node follows an order of this job. So may this node's readers, if no order was told for them. It
    /// needs no files.
    pub(super) fn suggest(&self, spec: &OrderSpec) {
        let Some(learning) = &self.learning else { return };
        let resolve = |listing: &Listing<'_>| spec.resolve(listing, &[]);
        // It may be of files that this node does not have.
        if let Ok(order) = with_listing(&self.core.catalog, &[], None, resolve) {
            learning.suggest(order, spec.clone());
        }
    }

    /// The orders that readers follow, told and learnt, as other nodes are told of them.
    pub(super) fn followed(&self, published: &Published) -> Vec<Stream> {
        let told = self.statuses(published).into_iter().filter_map(|stream| {
            let progress = stream.progress;
            let is_known = progress.following && !progress.is_empty();
            let StreamStatus { epoch, front, length, .. } = progress;
            Some((stream.spec.filter(|_| is_known)?, epoch, front, length))
        });
        let progress = |stream| published.progress(stream).cloned();
        let loaders = self.learning.iter().flat_map(|learning| learning.loaders(progress));
        let learnt = loaders.filter_map(|loader| {
            let spec = loader.spec.filter(|_| loader.followed)?;
            // The planner was told the rest of the epoch.
            let left = loader.progress.map(|it| it.length.saturating_sub(it.front))?;
            Some((spec, loader.spec_epoch, loader.length.saturating_sub(left), loader.length))
        });
        let stream = |(spec, epoch, position, length): (String, u32, u32, u32)| {
            let spec: OrderSpec = spec.parse().ok()?;
            Some(Stream { spec: spec.to_string(), epoch, position, length, rate: 0.0 })
        };
        told.chain(learnt).filter_map(stream).collect()
    }

    pub(super) fn statuses(&self, published: &Published) -> Vec<OrderStatus> {
        let streams = self.streams.lock().clone();
        let given = streams.iter().enumerate().filter(|(_, stream)| !stream.is_learnt());
        let status = |(index, stream): (usize, &StreamInfo)| OrderStatus {
            stream: stream.name.clone(),
            spec: stream.spec.clone(),
            refused: stream.refused.clone(),
            fix: self.learning.as_ref().and_then(|learning| learning.fix(StreamId(index as u16))),
            progress: published.progress(StreamId(index as u16)).cloned().unwrap_or_default(),
        };
        given.map(status).collect()
    }
}
