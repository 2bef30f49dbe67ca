//! A fence around the writes of a pass: what is not ours any more is not written to.
//!
//! Guarantees: a request that changes something is sent by a client of [`guarded`] only while the root of the work is ours,
//! as looked at right before it is sent; what was sent before is waited for before others are told that they may take the
//! root. It holds for whatever runs inside of [`within`], also where a task is spawned with [`carried`].

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use thiserror::Error;

use crate::core::share::Root;
use crate::core::share::view::{Role, Share};
use crate::io::members::{Members, Writing};

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, Error)]
#[error("not sent: another replica has this object now")]
pub struct NotOurs;

type Looked = dyn Fn(&Members) -> Option<Writing> + Send + Sync;

/// What may be done, looked at anew each time.
#[derive(Clone)]
pub struct Fence {
    members: Members,
    look: Arc<Looked>,
}

impl Fence {
    /// Around work in a role on the root that `root` gives; it is asked for before each write.
    pub fn new(members: &Members, role: Role, root: impl Fn() -> Option<Root> + Send + Sync + 'static) -> Self {
        // Without a root nothing is known to be ours.
        Self::looking(members, move |members| {
            let root = root()?;
            members.enter(|share| share.role(&root) == role)
        })
    }

    /// Around what is done by one alone.
    pub fn of_leader(members: &Members) -> Self {
        Self::looking(members, |members| members.enter(Share::leads))
    }

    /// Around what is done by the one who registers what it serves.
    pub fn of_registrar(members: &Members, what: &str) -> Self {
        let what = what.to_owned();
        Self::looking(members, move |members| members.enter(|share| share.registers(&what)))
    }

    fn looking(members: &Members, look: impl Fn(&Members) -> Option<Writing> + Send + Sync + 'static) -> Self {
        Self { members: members.clone(), look: Arc::new(look) }
    }

    /// Whether writes are let through. While a write is under way, what it returned is kept.
    fn enter(&self) -> Option<Writing> {
        if self.members.is_alone() {
            return self.members.enter(|_| true);
        }
        (self.look)(&self.members)
    }
}

/// What was written last to an object in a pass.
#[derive(Clone, Debug)]
pub struct Written {
    /// The version that came of it.
    pub resource_version: Option<String>,
    /// The status that was written.
    pub status: Value,
}

struct Scope {
    fence: Fence,
    own: OnceLock<Client>,
    written: Mutex<HashMap<String, Written>>,
}

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// Runs a pass inside of a fence.
pub async fn within<T>(fence: Fence, pass: impl Future<Output = T>) -> T {
    let scope = Scope { fence, own: OnceLock::new(), written: Mutex::default() };
    SCOPE.scope(Arc::new(scope), pass).await
}

/// The same work inside of the fence that is around the caller, for a task of its own.
pub fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let scope = scope();
    async move {
        match scope {
            Some(scope) => SCOPE.scope(scope, work).await,
            None => work.await,
        }
    }
}

fn scope() -> Option<Arc<Scope>> {
    SCOPE.try_with(Arc::clone).ok()
}

/// Whether what runs here may write; it may where there is no fence.
pub fn holds() -> bool {
    scope().is_none_or(|scope| scope.fence.enter().is_some())
}

/// Remembers for this pass what was written to the status of an object.
pub fn wrote(uid: &str, written: Written) {
    if let Some(scope) = scope() {
        scope.written.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), written);
    }
}

/// What this pass wrote to the status of an object last.
pub fn written(uid: &str) -> Option<Written> {
    scope()?.written.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()
}

/// A client whose writes go through the fence around the caller; the client itself where there is none.
pub fn guarded(client: &Client) -> Client {
    match scope() {
        Some(scope) if !scope.fence.members.is_alone() => fenced(client.clone(), scope.fence.clone()),
        _ => client.clone(),
    }
}

/// The same of the operator's own client, once for each pass.
pub(super) fn guarded_own(client: &Client) -> Client {
    match scope() {
        Some(scope) if !scope.fence.members.is_alone() => {
            scope.own.get_or_init(|| fenced(client.clone(), scope.fence.clone())).clone()
        }
        _ => client.clone(),
    }
}

/// Lets a request through that waited for its turn meanwhile.
#[derive(Clone)]
pub(super) struct Checked(Fence);

impl Checked {
    /// Whether it may still be sent.
    pub(super) fn holds(&self) -> bool {
        self.0.enter().is_some()
    }
}

fn fenced(client: Client, fence: Fence) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, fence) = (client.clone(), fence.clone());
        async move {
            if is_read(request.method()) {
                return client.send(request).await;
            }
            // It is kept until the answer is there.
            let Some(_writing) = fence.enter() else { return Err(kube::Error::Service(NotOurs.into())) };
            request.extensions_mut().insert(Checked(fence.clone()));
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a request was not sent for the object is another's now.
pub fn is_not_ours(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(inner) if inner.is::<NotOurs>())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use http::Response;
    use tokio::sync::Semaphore;
    use tower::BoxError;

    use super::*;
    use crate::core::share::Member;
    use crate::core::share::view::{LEASE, Sight, View};

    /// The share of a replica that has all.
    fn all() -> Share {
        let me = Member { id: "a".to_owned(), ..Member::default() };
        let mut view = View::default();
        view.begin(me.clone(), Duration::ZERO, []);
        let seen = |published: &str| Sight {
            member: me.clone(),
            lasts: LEASE,
            published: published.to_owned(),
            ..Sight::default()
        };
        view.looked(Duration::ZERO, Duration::ZERO, &[seen("")]);
        let digest = view.unsaid().unwrap().to_owned();
        view.published(&digest, Duration::ZERO);
        view.looked(Duration::ZERO, Duration::ZERO, &[seen(&digest)]);
        view.share()
    }

    fn members() -> Members {
        Members::with(Share::default(), false, "default")
    }

    /// An API server that answers when it has a permit; how many requests it got.
    fn server(permits: usize) -> (Client, Arc<AtomicUsize>, Arc<Semaphore>) {
        let (got, room) = (Arc::new(AtomicUsize::default()), Arc::new(Semaphore::new(permits)));
        let (count, wait) = (Arc::clone(&got), Arc::clone(&room));
        let service = tower::service_fn(move |_: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let wait = Arc::clone(&wait);
            async move {
                wait.acquire().await?.forget();
                Ok::<_, BoxError>(Response::new(Body::empty()))
            }
        });
        (Client::new(service, "default"), got, room)
    }

    async fn send(client: &Client, method: Method) -> Result<(), kube::Error> {
        let request = Request::builder().method(method).uri("/api/v1/nodes/x").body(Body::empty()).unwrap();
        guarded(client).send(request).await.map(drop)
    }

    #[tokio::test]
    async fn what_is_not_ours_is_read_and_not_written() {
        let (members, (client, got, _)) = (members(), server(100));
        let until = Some(Duration::from_hours(1));
        let writes = async || within(Fence::of_leader(&members), send(&client, Method::PATCH)).await;
        assert!(is_not_ours(&writes().await.unwrap_err()) && got.load(Ordering::SeqCst) == 0);
        within(Fence::of_leader(&members), send(&client, Method::GET)).await.unwrap();
        members.set(all(), until, true);
        writes().await.unwrap();
        let root = Root { uid: "u".to_owned(), ..Root::default() };
        let fence = |role| {
            Fence::new(&members, role, {
                let root = root.clone();
                move || Some(root.clone())
            })
        };
        within(fence(Role::Works), send(&client, Method::DELETE)).await.unwrap();
        assert!(within(fence(Role::Tells), send(&client, Method::DELETE)).await.is_err());
        // The term is over, whatever the share.
        members.set(all(), Some(Duration::ZERO), false);
        assert!(is_not_ours(&writes().await.unwrap_err()));
        assert!(!within(Fence::of_leader(&members), async { holds() }).await && holds());
        // Outside of a fence nothing is held back.
        send(&client, Method::POST).await.unwrap();
        assert_eq!(got.load(Ordering::SeqCst), 4);
    }

    #[tokio::test]
    async fn what_is_under_way_is_waited_for_before_others_are_told() {
        let (members, (client, got, room)) = (members(), server(0));
        members.set(all(), Some(Duration::from_hours(1)), true);
        let work = async move { send(&client, Method::PUT).await };
        let mut task = None;
        within(Fence::of_leader(&members), async { task = Some(tokio::spawn(carried(work))) }).await;
        while got.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        members.set(Share::default(), None, true);
        let drained = members.drained();
        tokio::pin!(drained);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut drained).await.is_err());
        room.add_permits(1);
        drained.await;
        task.unwrap().await.unwrap().unwrap();
    }
}
