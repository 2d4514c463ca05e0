//! What is asked of the servers.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use scylla::client::PoolSize;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::metadata::ColumnType;
use scylla::deserialize::row::ColumnIterator;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::speculative_execution::{
    SimpleSpeculativeExecutionPolicy, SpeculativeExecutionPolicy,
};
use scylla::response::PagingState;
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use tokio::time::sleep;

use super::cluster::Cluster;
use super::fault::{Fault, say_unconnected};
use super::replicas::{ROLES, Replicas, count};
use super::rows::{Listed, Row, Shape};
use super::schema::{Plan, Table};
use crate::error::{Error, Result as UserResult};
use crate::source::remote::Passing;

/// Eight connections to each node. One has a window of some mebibytes, which a long link fills.
const CONNECTIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// How long a connection and an answer may take.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// After this time without an answer, the driver asks a node whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// After this time without an answer, another node is asked as well. The first one may be silent.
const SILENT: Duration = Duration::from_secs(2);

/// How many replicas a read asks first, and how many are asked before a row counts as missing or as changed. A listing
/// and a lookup ask as many: one replica may lack a row, or have an old one, until it is repaired.
const FIRST: Consistency = Consistency::LocalOne;
const SURE: Consistency = Consistency::LocalQuorum;

/// The pauses before a row is looked at again whose size and data do not fit. Its writer may be at work.
const HALF_WRITTEN: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3)];

/// A key as the server wrote it.
struct Id<'a>(&'a [u8]);

impl SerializeValue for Id<'_> {
    fn serialize<'b>(
        &self,
        _type: &ColumnType,
        writer: CellWriter<'b>,
    ) -> Result<WrittenCellProof<'b>, SerializationError> {
        writer.set_value(self.0).map_err(SerializationError::new)
    }
}

/// The data of a row.
enum Data {
    /// It is that of the listed version.
    Right(Vec<u8>),
    /// What there is in its place.
    Other(String),
}

/// The servers, and the requests that are made.
pub(super) struct Asked {
    session: Session,
    list: PreparedStatement,
    find: PreparedStatement,
    /// Of one replica, and of enough to be sure.
    read: [PreparedStatement; 2],
    shape: Shape,
    /// Whether write times are compared.
    compares_times: bool,
    /// Whether everything was listed once, so that the user had the rights.
    pub(super) has_worked: AtomicBool,
}

impl Asked {
    /// Connects to a cluster, and looks at its tables.
    ///
    /// # Errors
    /// If it does not answer, or the tables cannot be shown as they should be.
    pub(super) async fn connect(
        cluster: &Cluster,
        tls: Option<Arc<ClientConfig>>,
        is_immutable: bool,
    ) -> UserResult<Self> {
        let mut builder = SessionBuilder::new()
            .known_nodes(cluster.addresses())
            .pool_size(PoolSize::PerHost(CONNECTIONS))
            .connection_timeout(CONNECT)
            .keyspaces_to_fetch([cluster.keyspace()])
            .keepalive_interval(KEEPALIVE)
            .default_execution_profile_handle(profile(FIRST, true, true));
        if let Some((name, password)) = cluster.user() {
            builder = builder.user(name, password);
        }
        if let Some(datacenter) = cluster.datacenter() {
            builder = builder.prefer_datacenter(datacenter.to_owned());
        }
        let builder = builder.tls_context(tls);
        let session = Box::pin(builder.build()).await;
        let session = session.map_err(|error| cluster.refuse(&say_unconnected(&error)))?;
        check_datacenter(&session, cluster)?;
        let plan = plan(&session, cluster, is_immutable)?;
        let prepare = |text| prepare(&session, cluster, text);
        let ((), list, find, read) = tokio::try_join!(
            check_partitioner(&session, cluster),
            prepare(plan.list),
            prepare(plan.find),
            prepare(plan.read)
        )?;
        // Another datacenter may lack rows.
        let sure = profile(SURE, false, true);
        let mut read = [read.clone(), read];
        let (mut list, mut find) = (list, find);
        list.set_execution_profile_handle(Some(profile(SURE, false, false)));
        for statement in [&mut find, &mut read[1]] {
            statement.set_execution_profile_handle(Some(sure.clone()));
        }
        list.set_page_size(plan.page);
        if let Some(advice) = &plan.advice {
            let name = cluster.name().display();
            tracing::warn!(
                "source.size is not set, so the size of a file of {name} is not known before it is \
                 read: `ls -l` and `du` read all bytes of each file. To avoid that, {advice}"
            );
        }
        let (shape, compares_times) = (plan.shape, !is_immutable);
        let has_worked = AtomicBool::new(false);
        Ok(Asked { session, list, find, read, shape, compares_times, has_worked })
    }

    /// Whether rows are listed with their sizes.
    pub(super) fn tells_sizes(&self) -> bool {
        self.shape.tells_sizes()
    }

    /// How many replicas the data of a keyspace has, and how many the roles; `None` if the server does not tell.
    pub(super) async fn replicas(&self, keyspace: &str) -> Option<Replicas> {
        let asked = format!(
            "SELECT keyspace_name, replication FROM system_schema.keyspaces \
             WHERE keyspace_name IN ('{keyspace}', '{ROLES}')"
        );
        let answer = rows_of(self.session.query_unpaged(asked, ()).await.ok()?).ok()?;
        let rows = answer.rows::<(String, HashMap<String, String>)>().ok()?;
        let found: HashMap<String, u64> = rows
            .map(|row| row.map(|(name, options)| (name, count(&options))))
            .collect::<std::result::Result<_, _>>()
            .ok()?;
        Some(Replicas { data: *found.get(keyspace)?, roles: *found.get(ROLES)? })
    }

    /// How people find a row.
    pub(super) fn say(&self, listed: &Listed) -> String {
        self.shape.say(&listed.id)
    }

    fn fault(&self, error: &scylla::errors::ExecutionError) -> Fault {
        Fault::of(error, self.has_worked.load(Ordering::Relaxed))
    }

    async fn ask(&self, one: &PreparedStatement, id: &[u8]) -> Result<QueryRowsResult, Fault> {
        let answer = self.session.execute_unpaged(one, (Id(id),)).await;
        rows_of(answer.map_err(|error| self.fault(&error))?)
    }

    /// The rows in an answer.
    fn rows(&self, answer: &QueryRowsResult) -> Result<Vec<Row>, Fault> {
        let rows = answer.rows::<ColumnIterator<'_, '_>>().map_err(wrong)?;
        let (mut found, mut cells) = (Vec::with_capacity(answer.rows_num()), Vec::new());
        for row in rows {
            cells.clear();
            for cell in row.map_err(wrong)? {
                cells.push(cell.map_err(wrong)?.slice.map(|cell| cell.as_slice()));
            }
            found.push(self.shape.row(&cells).map_err(Fault::Wrong)?);
        }
        Ok(found)
    }

    /// A page of the listing of a range of tokens, and from where to go on.
    pub(super) async fn page(
        &self,
        range: (i64, i64),
        from: PagingState,
    ) -> Result<(Vec<Row>, ControlFlow<(), PagingState>), Fault> {
        let page = self.session.execute_single_page(&self.list, range, from).await;
        let (answer, then) = page.map_err(|error| self.fault(&error))?;
        Ok((self.rows(&rows_of(answer)?)?, then.into_paging_control_flow()))
    }

    /// Whether a row is still as it was listed.
    pub(super) async fn is_current(&self, listed: &Listed) -> Result<bool, Fault> {
        let answer = self.ask(&self.find, &listed.id).await?;
        match self.rows(&answer) {
            Ok(rows) => Ok(rows.iter().any(|row| row.listed == *listed)),
            // A row that is no file any more is refused when all are listed again.
            Err(Fault::Wrong(_)) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// All bytes of a row as it was listed.
    pub(super) async fn read(&self, listed: &Listed) -> Result<Vec<u8>, Fault> {
        let mut pauses = HALF_WRITTEN.iter();
        loop {
            let mut found = String::new();
            for look in &self.read {
                match self.data(look, listed).await? {
                    Data::Right(bytes) => return Ok(bytes),
                    Data::Other(other) => found = other,
                }
            }
            if !self.is_current(listed).await? {
                return Err(Fault::Changed);
            }
            let Some(pause) = pauses.next() else {
                return Err(Fault::Apart(self.say_apart(listed, &found)));
            };
            sleep(*pause).await;
        }
    }

    async fn data(&self, look: &PreparedStatement, listed: &Listed) -> Result<Data, Fault> {
        let answer = self.ask(look, &listed.id).await?;
        let row = answer.maybe_first_row::<(Option<&[u8]>, Option<i64>)>().map_err(wrong)?;
        let Some((Some(bytes), Some(written))) = row else {
            return Ok(Data::Other("there is no data".to_owned()));
        };
        let is_right = listed.size.is_none_or(|size| size == bytes.len() as u64)
            && (written == listed.written || !self.compares_times);
        Ok(match is_right {
            true => Data::Right(bytes.to_vec()),
            false => {
                Data::Other(format!("the data has {} bytes, written at {written}", bytes.len()))
            }
        })
    }

    /// Why the data of a row is not that of its size.
    fn say_apart(&self, listed: &Listed, found: &str) -> String {
        let (row, written) = (self.say(listed), listed.written);
        match listed.size {
            Some(size) => format!("{row} says {size} bytes, written at {written}, but {found}"),
            None => format!("{row} is listed, but {found}"),
        }
    }
}

fn wrong(error: impl std::error::Error) -> Fault {
    Fault::Wrong(error.to_string())
}

fn rows_of(answer: QueryResult) -> Result<QueryRowsResult, Fault> {
    answer.into_rows_result().map_err(wrong)
}

async fn prepare(
    session: &Session,
    cluster: &Cluster,
    text: String,
) -> UserResult<PreparedStatement> {
    let prepared = Box::pin(session.prepare(text)).await;
    let mut prepared =
        prepared.map_err(|error| cluster.refuse(&Fault::of_preparing(&error).message()))?;
    prepared.set_is_idempotent(true);
    Ok(prepared)
}

/// How a statement is executed: how many replicas are asked, and whether those of another datacenter may be. A request
/// for one row asks another node if the first one is silent.
fn profile(consistency: Consistency, may_be_far: bool, is_one: bool) -> ExecutionProfileHandle {
    let policy = DefaultPolicy::builder().permit_dc_failover(may_be_far).build();
    let again: Arc<dyn SpeculativeExecutionPolicy> =
        Arc::new(SimpleSpeculativeExecutionPolicy { max_retry_count: 1, retry_interval: SILENT });
    let builder = ExecutionProfile::builder()
        .consistency(consistency)
        .request_timeout(Some(ANSWER))
        .load_balancing_policy(policy)
        .speculative_execution_policy(is_one.then_some(again));
    builder.build().into_handle()
}

/// Keys of other partitioners have other tokens.
async fn check_partitioner(session: &Session, cluster: &Cluster) -> UserResult<()> {
    let local = "SELECT partitioner FROM system.local WHERE key = 'local'";
    let found = Box::pin(session.query_unpaged(local, ())).await;
    let found = found.map_err(|error| cluster.refuse(&error.to_string()))?;
    let found = rows_of(found).and_then(|rows| rows.first_row::<(String,)>().map_err(wrong));
    let (partitioner,) = found.map_err(|fault| cluster.refuse(&fault.message()))?;
    if !partitioner.ends_with("Murmur3Partitioner") {
        let why = format!("its partitioner is {partitioner}, and only Murmur3Partitioner is known");
        return Err(cluster.refuse(&why).hint("it is set in cassandra.yaml before there is data"));
    }
    Ok(())
}

/// In another datacenter than that whose replicas are asked, rows may be missing for a while.
fn check_datacenter(session: &Session, cluster: &Cluster) -> UserResult<()> {
    let state = session.get_cluster_state();
    let all = state.get_nodes_info().iter().filter_map(|node| node.datacenter.as_deref());
    let all: BTreeSet<&str> = all.collect();
    let why = match cluster.datacenter() {
        Some(wanted) if !all.contains(wanted) => format!("there is no datacenter {wanted}"),
        None if all.len() > 1 => "it has several datacenters".to_owned(),
        _ => return Ok(()),
    };
    let all = all.into_iter().collect::<Vec<_>>().join(", ");
    Err(cluster.refuse(&why).hint(format!("set CASSANDRA_DATACENTER to one of {all}")))
}

/// Looks at the tables.
fn plan(session: &Session, cluster: &Cluster, is_immutable: bool) -> UserResult<Plan> {
    let (shown, keyspace) = (cluster.shown(), cluster.keyspace());
    let state = session.get_cluster_state();
    let missing = || cluster.refuse(&format!("there is no keyspace {keyspace}"));
    let tables = &state.get_keyspace(keyspace).ok_or_else(missing)?.tables;
    let table = |name: &str| {
        let missing = || cluster.refuse(&format!("there is no table {keyspace}.{name}"));
        tables.get(name).map(|found| Table::of(name, found)).ok_or_else(missing)
    };
    let (rows, data) = (table(&shown.rows)?, table(&shown.data.0)?);
    let named =
        |error: Error| error.context(format!("cannot use the source {}", cluster.name().display()));
    Plan::new(shown, is_immutable, keyspace, &rows, &data).map_err(named)
}
