//! A server that speaks the native protocol of Cassandra, with rows in memory. It fails as a test wants it to.
//!
//! 1. A thread accepts connections. Each of them has a thread, which answers one request after the other ([`state`]).
//! 2. A driver reads what there is from the tables of the system ([`tables`]). It finds one node, which has the whole
//!    ring.
//! 3. A statement is taken apart anew for each request ([`select`]). The id of a prepared one comes from its text.
//! 4. There are two copies of the rows. A request with `ONE` or `LOCAL_ONE` gets that of one replica. All others get
//!    that of most replicas. Both are the same until [`CqlServer::put_stale`].
//! 5. Before a statement is executed, the first [`Fault`] that is left for it takes its place.

mod fault;
mod frames;
mod select;
mod state;
mod tables;

use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use fault::{Fault, Refusal};
use frames::{Body, Frame};
use select::Select;
use state::{Answer, Rule, State};
use tables::{Column, Table};
pub use tables::{Part, token};

/// How long the port may be another program's.
const PORT_LIMIT: Duration = Duration::from_secs(60);

struct Connection {
    stream: TcpStream,
    /// Held while an answer is sent.
    sending: Mutex<()>,
}

impl Connection {
    fn send(&self, bytes: &[u8]) {
        let _one = lock(&self.sending);
        // The client may have gone.
        let _ = (&self.stream).write_all(bytes);
    }

    fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the threads of a server share.
struct Shared(Mutex<State>);

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let mut state = lock(&self.0);
            if !state.is_serving {
                return;
            }
            let _ = stream.set_nodelay(true);
            let connection = Arc::new(Connection { stream, sending: Mutex::default() });
            let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
            let thread = thread::spawn(move || shared.converse(&own));
            state.open.push((connection, thread));
        }
    }

    fn converse(&self, connection: &Arc<Connection>) {
        let mut requests = BufReader::new(&connection.stream);
        let mut is_known = lock(&self.0).user.is_none();
        while let Some(request) = Frame::read(&mut requests) {
            let answer = lock(&self.0).answer(&request, &mut is_known);
            match answer {
                Answer::Whole(bytes) => connection.send(&bytes),
                Answer::Half(bytes) => {
                    connection.send(&bytes[..bytes.len() / 2]);
                    break;
                }
                Answer::Later(bytes) => {
                    lock(&self.0).held.push((Arc::clone(connection), bytes));
                }
            }
        }
        connection.cut();
        lock(&self.0).open.retain(|(open, _)| !Arc::ptr_eq(open, connection));
    }
}

pub struct CqlServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The thread that accepts connections; `None` while the server is stopped.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl CqlServer {
    /// A server that asks nobody for a password.
    pub fn start() -> Self {
        Self::start_for(None)
    }

    /// A server with one user.
    pub fn with_password(name: &str, password: &str) -> Self {
        Self::start_for(Some((name.to_owned(), password.to_owned())))
    }

    fn start_for(user: Option<(String, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the port");
        let shared = Arc::new(Shared(Mutex::new(State { user, ..State::default() })));
        let server = CqlServer { shared, address, accepting: Mutex::default() };
        server.serve(listener);
        server
    }

    fn serve(&self, listener: TcpListener) {
        self.state().is_serving = true;
        let shared = Arc::clone(&self.shared);
        let accepting = thread::spawn(move || shared.accept(&listener));
        *lock(&self.accepting) = Some(accepting);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.0)
    }

    /// As long as what is returned is not dropped, no request is answered.
    pub fn hold(&self) -> impl Sized + '_ {
        self.state()
    }

    /// HOST:PORT.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Cuts all connections. The port refuses others until [`start_again`](Self::start_again).
    pub fn stop(&self) {
        let Some(accepting) = lock(&self.accepting).take() else { return };
        self.state().is_serving = false;
        // The thread that accepts connections then sees that it is to end.
        let _ = TcpStream::connect(self.address);
        let _ = accepting.join();
        self.state().held.clear();
        let open = std::mem::take(&mut self.state().open);
        open.iter().for_each(|(connection, _)| connection.cut());
        for (_, thread) in open {
            let _ = thread.join();
        }
    }

    /// Serves at the same port again, with the same rows. No statement is prepared any more.
    pub fn start_again(&self) {
        self.stop();
        self.state().prepared.clear();
        let began = Instant::now();
        let listener = loop {
            // A client may have the port for a moment.
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < PORT_LIMIT, "{error}"),
            }
            thread::sleep(Duration::from_millis(20));
        };
        self.serve(listener);
    }

    /// Makes the only keyspace, which has no tables then.
    pub fn create_keyspace(&self, name: &str) {
        let mut state = self.state();
        state.about.keyspace = Some(name.to_owned());
        state.about.tables.clear();
    }

    /// Makes a table without rows, with a name, a type of CQL and a part for each column.
    pub fn create_table(&self, name: &str, columns: &[(&str, &str, Part)]) {
        let column = |(name, kind, part): &(&str, &str, Part)| {
            // It fails the test if there is no such type.
            Body::default().kind(kind);
            Column { name: (*name).to_owned(), kind: (*kind).to_owned(), part: *part }
        };
        let table = Table::new(columns.iter().map(column).collect());
        self.state().about.tables.insert(name.to_owned(), table);
    }

    /// Drops a table. Statements that ask for it are not prepared any more.
    pub fn drop_table(&self, name: &str) {
        let mut state = self.state();
        state.about.tables.remove(name);
        let is_of = |text: &str| Select::parse(text).is_some_and(|select| select.table == name);
        state.prepared.retain(|_, text| !is_of(text));
    }

    /// Writes cells of a row, each a column, bytes and a write time. A cell that was written later stays.
    pub fn put(&self, table: &str, key: &[u8], cells: &[(&str, &[u8], i64)]) {
        self.state().table_mut(table).put(key, cells);
    }

    pub fn delete(&self, table: &str, key: &[u8]) {
        self.state().table_mut(table).delete(key);
    }

    /// Makes a cell null.
    pub fn delete_cell(&self, table: &str, key: &[u8], column: &str) {
        self.state().table_mut(table).delete_cell(key, column);
    }

    /// Has one replica keep another row, or none, until the row is written or deleted.
    pub fn put_stale(&self, table: &str, key: &[u8], cells: Option<&[(&str, &[u8], i64)]>) {
        self.state().table_mut(table).put_stale(key, cells);
    }

    /// Has one replica keep what most keep.
    pub fn repair(&self) {
        self.state().about.tables.values_mut().for_each(Table::repair);
    }

    /// Sends pages with so many rows at most, whatever a client asks for.
    pub fn set_page_max(&self, rows: usize) {
        self.state().page_max = Some(rows);
    }

    pub fn set_partitioner(&self, class: &str) {
        self.state().about.partitioner = Some(class.to_owned());
    }

    /// Answers the next statements that have a text in them with a fault. All have the empty text. Of several faults
    /// for a statement, the one that was set first comes first.
    pub fn answer_with(&self, of: &str, times: usize, fault: Fault) {
        self.state().rules.push(Rule { of: of.to_owned(), times, fault });
    }

    /// Answers as it should from now on.
    pub fn answer_right(&self) {
        self.state().rules.clear();
    }

    /// How many answers are not sent because of [`Fault::Silence`].
    pub fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Sends these answers.
    pub fn release(&self) {
        let held = std::mem::take(&mut self.state().held);
        held.iter().for_each(|(connection, bytes)| connection.send(bytes));
    }

    /// The statements for rows of the keyspace that came since this was called last, with faults and without, each
    /// as `LOCAL_ONE SELECT ...`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// The statements that this server does not know.
    pub fn not_understood(&self) -> Vec<String> {
        self.state().not_understood.clone()
    }
}

impl Drop for CqlServer {
    fn drop(&mut self) {
        self.stop();
    }
}
