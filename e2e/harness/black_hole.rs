//! An API server that takes connections and never answers.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A listener of a loopback address. It ends with the process of the tests.
pub(crate) struct BlackHole {
    port: u16,
    taken: Arc<Mutex<Vec<TcpStream>>>,
}

impl BlackHole {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("no port");
        let port = listener.local_addr().expect("no address").port();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&taken);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                keep.lock().expect("poisoned").push(stream);
            }
        });
        Self { port, taken }
    }

    /// How often somebody came.
    pub(crate) fn connections(&self) -> usize {
        self.taken.lock().expect("poisoned").len()
    }

    /// A kubeconfig that leads to it.
    pub(crate) fn kubeconfig(&self) -> String {
        format!(
            "{{current-context: a, contexts: [{{name: a, context: {{cluster: c, user: u}}}}], clusters: [{{name: c, cluster: \
             {{server: 'https://127.0.0.1:{}'}}}}], users: [{{name: u, user: {{token: swordfish}}}}]}}",
            self.port
        )
    }
}
