mod crash;
mod faults;
mod large;
mod real;

impl super::Store {
    /// As if half a minute had passed.
    pub(crate) fn make_due(&self) {
        self.health.make_due();
    }
}
