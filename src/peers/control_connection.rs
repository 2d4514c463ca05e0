//! A connection on which a server is asked for what it knows, again and again, with pauses if it does not answer.

use std::time::{Duration, Instant};

use redis::RedisResult;

use super::connection::{Connection, Endpoint, SHORT};

/// The pause after which a server that did not answer is asked again. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(super) struct ControlConnection {
    connection: Option<Connection>,
    /// Why it does not answer.
    pub(super) why: Option<String>,
    pause: Duration,
    /// When it is to be asked again.
    pub(super) next: Instant,
}

impl ControlConnection {
    pub(super) fn new() -> Self {
        ControlConnection { connection: None, why: None, pause: PAUSE_MIN, next: Instant::now() }
    }

    /// Ends the connection. The server can be asked again at once.
    pub(super) fn rest(&mut self) {
        *self = ControlConnection::new();
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Asks the server, and asks it again after `pause` if it answers.
    ///
    /// # Errors
    /// If it does not answer. Then it is asked later, and `why` says what is wrong.
    pub(super) fn ask<T>(
        &mut self,
        endpoint: &Endpoint,
        pause: Duration,
        question: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let answer = self.try_to_ask(endpoint, question);
        match &answer {
            Ok(_) => {
                (self.why, self.pause) = (None, PAUSE_MIN);
                self.next = Instant::now() + pause;
            }
            Err(error) => {
                self.connection = None;
                self.why = Some(error.to_string());
                self.next = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
        answer
    }

    fn try_to_ask<T>(
        &mut self,
        endpoint: &Endpoint,
        question: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => endpoint.connect(SHORT)?,
        };
        let answer = question(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}
