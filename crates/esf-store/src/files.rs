//! The files of a root as the exchange formats read them: through its carriers, verified.

use std::io::Read;

use esf_core::manifest::RootPin;
use esf_layerstack::LayerStack;

/// The files of one root.
#[derive(Clone, Copy, Debug)]
pub struct RootFiles<'a> {
    stack: &'a LayerStack,
    pin: &'a RootPin,
}

impl<'a> RootFiles<'a> {
    /// The files of the root `pin` in `stack`.
    pub fn new(stack: &'a LayerStack, pin: &'a RootPin) -> Self {
        Self { stack, pin }
    }
}

impl esf_exchange::Files for RootFiles<'_> {
    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>, esf_exchange::Error> {
        Ok(Box::new(self.stack.open_file(self.pin, path)?))
    }
}
