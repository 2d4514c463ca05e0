//! An HTTP server that answers as a test wants it to.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// An answer to a request: a status, headers, and a body.
pub(in crate::source) type Answer = (&'static str, Vec<String>, Vec<u8>);

/// Starts a server that answers with what `answer` makes of the lines of a request, the first of which is such as
/// `GET /bucket/x HTTP/1.1`.
pub(in crate::source) fn serve(
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            thread::spawn(move || converse(&connection, &*answer));
        }
    });
    address
}

/// Answers the requests of a connection.
fn converse(connection: &TcpStream, answer: &dyn Fn(&str) -> Answer) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    while let Some(mut request) = lines.next() {
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            request += &format!("\n{line}");
        }
        let (status, headers, body) = answer(&request);
        let mut text = format!("HTTP/1.1 {status}\r\n");
        if !headers.iter().any(|header| header.starts_with("Content-Length")) {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        headers.iter().for_each(|header| text += &format!("{header}\r\n"));
        let body: &[u8] = if request.starts_with("HEAD ") { &[] } else { &body };
        let mut connection = connection;
        let written = connection.write_all(format!("{text}\r\n").as_bytes());
        if written.and_then(|()| connection.write_all(body)).is_err() {
            return;
        }
        if headers.iter().any(|header| header == "Connection: close") {
            // The reader sees the end of the answer.
            let _ = connection.shutdown(Shutdown::Both);
            return;
        }
    }
}
