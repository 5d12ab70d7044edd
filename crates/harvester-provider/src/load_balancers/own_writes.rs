//! Read your own writes. A watch cache lags behind the controller's own writes. Until it has caught up, decisions are
//! based on the answers to those writes, so that nothing is created or published twice.
//!
//! If an entry is forgotten too early, the cost is one request that is answered with 409 or changes nothing; it never
//! does harm.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::view::{ServiceKey, ServiceView, Uid};
use futures::FutureExt;
use runtime::cache::{Cache, Touched};

use super::service_patch::ServicePatch;
use super::view::LbView;

/// All LoadBalancer objects in this cluster's namespace, by name.
pub type LbCache = Cache<String, LbView>;

/// If the watch has not delivered a written object after this time, it never will: the object is gone again.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// An empty cache for a reflector to fill. A change of the resourceVersion alone is no change; every other field of the
/// view is used by a decision.
pub fn lb_cache() -> LbCache {
    Cache::new(|old, new| old != &LbView { resource_version: old.resource_version.clone(), ..new.clone() })
}

/// Whether a resourceVersion is at least as new as another. They are compared as numbers, which Kubernetes guarantees
/// since 1.35, and which was true in practice before.
fn at_least(version: &str, other: &str) -> bool {
    match (version.parse::<u128>(), other.parse::<u128>()) {
        (Ok(version), Ok(other)) => version >= other,
        _ => version == other,
    }
}

/// LoadBalancer objects as the watch shows them, or as the controller's last request left them if that is newer.
#[derive(Debug)]
pub struct Objects {
    cache: LbCache,
    known: Mutex<Known>,
}

/// State of the watch and of the controller's writes. Entries come in bursts; a tree gives their memory back, unlike a
/// hash table.
#[derive(Debug)]
struct Known {
    touched: Touched<String>,
    written: BTreeMap<String, Written>,
    shown: BTreeMap<String, Shown>,
}

/// What the watch last showed under a name. The answer to a write may arrive after the watch has already shown a later
/// state.
#[derive(Debug)]
struct Shown {
    /// `None`: the object appeared and vanished between two evaluations.
    uid: Option<String>,
    gone: Option<Instant>,
    /// When this process first saw the object of this UID.
    since: Instant,
}

#[derive(Debug, Clone)]
struct Written {
    view: LbView,
    at: Instant,
    /// As in [`Shown`].
    since: Instant,
    /// The cache contained the object at the time of the write, or did later. If the cache does not contain it now, the
    /// object is gone.
    shown: bool,
}

impl Objects {
    /// Creates the view on top of this cache.
    pub fn new(cache: LbCache) -> Self {
        let known = Known { touched: cache.subscribe(), written: BTreeMap::new(), shown: BTreeMap::new() };
        Self { cache, known: Mutex::new(known) }
    }

    /// Returns the state, after it has processed all changes that the watch has delivered.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock();
        while let Some(Some(name)) = known.touched.next().now_or_never() {
            let now = self.cache.get(&name).map(|view| view.uid.clone());
            known.notice(name, now);
        }
        known
    }

    /// The object of this name.
    pub fn get(&self, name: &str) -> Option<Arc<LbView>> {
        let mut known = self.known();
        let cached = self.cache.get(&name.to_owned());
        let Some(entry) = known.written.get_mut(name) else { return cached };
        let outdated = match &cached {
            Some(cached) => at_least(&cached.resource_version, &entry.view.resource_version),
            None => entry.shown,
        };
        if outdated || entry.at.elapsed() > FORGET_AFTER {
            known.written.remove(name);
            return cached;
        }
        entry.shown |= cached.is_some_and(|cached| cached.uid == entry.view.uid);
        Some(Arc::new(entry.view.clone()))
    }

    /// How long this process has known the object. Measured with the monotonic clock, so the host's clock does not
    /// matter.
    pub fn age(&self, lb: &LbView) -> Duration {
        self.known().since(&lb.name, &lb.uid).map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Makes all entries older by this time.
    #[cfg(test)]
    pub(super) fn grow_older(&self, by: Duration) {
        let mut known = self.known();
        let earlier = |at: &mut Instant| *at = at.checked_sub(by).expect("a machine that has run for so long");
        known.shown.values_mut().for_each(|shown| earlier(&mut shown.since));
        known.written.values_mut().for_each(|written| earlier(&mut written.since));
    }

    /// Stores the answer to a POST. Any object that the watch has shown under this name before was another one.
    pub fn created(&self, view: LbView) {
        let mut known = self.known();
        if known.shown.get(&view.name).is_some_and(|shown| shown.gone.is_some()) {
            known.shown.remove(&view.name);
        }
        known.keep(view);
    }

    /// Stores the answer to another write, or to a read that was newer than the cache. If the watch has shown since
    /// then that the object is gone, it stays gone.
    pub fn wrote(&self, view: LbView) {
        self.known().keep(view);
    }

    /// The API server answered that the object does not exist: removes what is stored about it.
    pub fn forget(&self, name: &str) {
        self.known().written.remove(name);
    }
}

impl Known {
    /// Processes what the watch shows under the name now: the UID of an object, or none.
    fn notice(&mut self, name: String, now: Option<String>) {
        if let Some(uid) = now {
            let since = self.since(&name, &uid).unwrap_or_else(Instant::now);
            self.shown.insert(name, Shown { uid: Some(uid), gone: None, since });
            return;
        }
        self.shown.retain(|_, shown| shown.gone.is_none_or(|gone| gone.elapsed() <= FORGET_AFTER));
        let unseen = || Shown { uid: None, gone: None, since: Instant::now() };
        let shown = self.shown.entry(name.clone()).or_insert_with(unseen);
        shown.gone = Some(Instant::now());
        if let Some(entry) = self.written.get_mut(&name) {
            entry.shown |= shown.uid.as_ref().is_none_or(|uid| *uid == entry.view.uid);
        }
    }

    fn keep(&mut self, view: LbView) {
        let now = Instant::now();
        let since = self.since(&view.name, &view.uid).unwrap_or(now);
        let shown = self.shown.get(&view.name);
        let shown = shown.is_some_and(|shown| shown.uid.as_ref().is_none_or(|uid| *uid == view.uid));
        self.written.insert(view.name.clone(), Written { at: now, since, shown, view });
    }

    /// Since when this process has known the object.
    fn since(&self, name: &str, uid: &str) -> Option<Instant> {
        let shown = self.shown.get(name).filter(|shown| shown.uid.as_deref() == Some(uid)).map(|shown| shown.since);
        let written = self.written.get(name).filter(|written| written.view.uid == uid).map(|written| written.since);
        shown.into_iter().chain(written).min()
    }
}

/// Services as the cache shows them, with the controller's patches that the cache does not show yet.
#[derive(Debug, Default)]
pub struct PatchedServices {
    patches: Mutex<BTreeMap<ServiceKey, Patched>>,
}

#[derive(Debug)]
struct Patched {
    uid: Uid,
    resource_version: String,
    patch: ServicePatch,
    at: Instant,
}

impl PatchedServices {
    /// The Service after the controller's last patch.
    pub fn see(&self, service: &ServiceView) -> ServiceView {
        let mut patches = self.patches.lock();
        let Some(entry) = patches.get(&service.key) else { return service.clone() };
        let outdated = entry.uid != service.uid
            || at_least(&service.resource_version, &entry.resource_version)
            || entry.at.elapsed() > FORGET_AFTER;
        if outdated {
            patches.remove(&service.key);
            return service.clone();
        }
        entry.patch.apply(service)
    }

    /// Services whose patch the cache may not show yet.
    pub fn keys(&self) -> Vec<ServiceKey> {
        self.patches.lock().keys().cloned().collect()
    }

    /// Stores a patch, and the resourceVersion of the Service that contains it.
    pub fn patched(&self, service: &ServiceView, patch: ServicePatch, resource_version: String) {
        let entry = Patched { uid: service.uid.clone(), resource_version, patch, at: Instant::now() };
        self.patches.lock().insert(service.key.clone(), entry);
    }

    /// Removes the patch of a Service that needs no load balancer any more. Other entries are removed when their
    /// Service is reconciled again, which may never happen for this one.
    pub fn forget(&self, service: &ServiceKey) {
        self.patches.lock().remove(service);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.patches.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::build;
    use super::*;

    fn at(version: &str) -> LbView {
        LbView { resource_version: version.into(), ..build::lb("a").done() }
    }

    fn objects() -> (LbCache, Objects) {
        let cache = lb_cache();
        (cache.clone(), Objects::new(cache))
    }

    fn version(objects: &Objects) -> Option<String> {
        objects.get("a").map(|view| view.resource_version.clone())
    }

    #[test]
    fn an_object_that_we_created_is_there_before_the_watch_shows_it() {
        let (cache, objects) = objects();
        objects.wrote(at("5"));
        assert_eq!(version(&objects).as_deref(), Some("5"));
        cache.apply("a".into(), at("7"));
        assert_eq!(version(&objects).as_deref(), Some("7"));
        cache.remove(&"a".to_owned());
        assert_eq!(version(&objects), None, "gone is gone");
    }

    #[test]
    fn an_older_state_from_the_watch_does_not_hide_our_write() {
        let (cache, objects) = objects();
        cache.apply("a".into(), at("9"));
        objects.wrote(at("10"));
        assert_eq!(version(&objects).as_deref(), Some("10"), "9 is older than 10");
        cache.remove(&"a".to_owned());
        assert_eq!(version(&objects), None, "the watch had shown it, so it is gone now");
    }

    /// Otherwise a deletion waits for a removal that has long been shown.
    #[test]
    fn an_answer_that_arrives_after_the_removal_does_not_bring_the_object_back() {
        let terminating = LbView { terminating: true, ..at("10") };
        for (what, answer) in [("DELETE", terminating), ("PUT", at("10"))] {
            let (cache, objects) = objects();
            cache.apply("a".into(), at("9"));
            cache.remove(&"a".to_owned());
            objects.wrote(answer.clone());
            assert_eq!(version(&objects), None, "{what}, never looked before");

            let (cache, objects) = self::objects();
            cache.apply("a".into(), at("9"));
            assert!(objects.get("a").is_some());
            cache.remove(&"a".to_owned());
            objects.wrote(answer.clone());
            assert_eq!(version(&objects), None, "{what}");

            let (cache, objects) = self::objects();
            objects.created(at("5"));
            assert!(objects.get("a").is_some());
            cache.apply("a".into(), at("9"));
            cache.remove(&"a".to_owned());
            objects.wrote(answer);
            assert_eq!(version(&objects), None, "{what}, of an object of ours");
        }
    }

    #[test]
    fn a_new_object_is_not_mistaken_for_its_predecessor_that_is_gone() {
        for looked in [false, true] {
            let (cache, objects) = objects();
            cache.apply("a".into(), at("9"));
            assert!(!looked || objects.get("a").is_some());
            cache.remove(&"a".to_owned());
            let successor = LbView { uid: "successor".into(), ..at("12") };
            objects.created(successor.clone());
            assert_eq!(version(&objects).as_deref(), Some("12"), "looked: {looked}");
            cache.apply("a".into(), successor);
            cache.remove(&"a".to_owned());
            assert_eq!(version(&objects), None);
        }
    }

    #[test]
    fn the_age_of_an_object_counts_from_our_first_sight_and_that_of_its_successor_anew() {
        let (cache, objects) = objects();
        let hour = Duration::from_hours(1);
        let minute = Duration::from_mins(1);
        objects.created(LbView { created: Some(0), ..at("5") });
        assert!(objects.age(&at("5")) < minute, "whatever its creationTimestamp says");
        objects.grow_older(hour);
        cache.apply("a".into(), at("7"));
        objects.wrote(at("8"));
        assert!(objects.age(&at("8")) >= hour, "neither the watch nor a write makes it young");
        let successor = LbView { uid: "successor".into(), ..at("12") };
        assert_eq!(objects.age(&successor), Duration::ZERO, "never seen");
        cache.apply("a".into(), successor.clone());
        assert!(objects.age(&successor) < minute);
    }

    #[test]
    fn what_the_api_denies_is_forgotten() {
        let (_, objects) = objects();
        objects.wrote(at("5"));
        objects.forget("a");
        assert_eq!(version(&objects), None);
    }

    #[test]
    fn a_patch_counts_until_the_cache_shows_it_or_a_successor() {
        let services = PatchedServices::default();
        let web = build::service("default/web").done();
        let patch = super::super::service_patch::publish(&web, "10.0.0.1", None);
        services.patched(&web, patch.clone(), "101".into());
        assert_eq!(services.see(&web), patch.apply(&web));
        let newer = ServiceView { resource_version: "102".into(), ..web.clone() };
        assert_eq!(services.see(&newer), newer);
        services.patched(&web, patch, "101".into());
        let successor = ServiceView { uid: Uid("other".into()), ..web };
        assert_eq!(services.see(&successor), successor);
    }
}
