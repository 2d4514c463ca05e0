mod crash;
mod faults;
mod large;
mod real;

impl super::Store {
    /// Half a minute has gone by.
    pub(crate) fn make_due(&self) {
        self.health.make_due();
    }
}
