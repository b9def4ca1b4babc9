use super::*;
use crate::registry::testing::registry;

fn sandbox(number: usize, labels: &[(&str, &str)]) -> Sandbox {
    Sandbox {
        id: format!("sb-{number:04}"),
        tag: if number.is_multiple_of(2) { "even" } else { "odd" }.into(),
        created_unix: 100,
        pid: Some(7),
        memory_limit_mib: None,
        limits: SandboxLimits::default(),
        hits: Hits::default(),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        expires_unix: None,
        status: SandboxStatus::Running,
        reason: None,
        branch_count: 0,
        last_branch: None,
        workspace: None,
        language: None,
        numpy: None,
        netns: None,
    }
}

fn ids(page: &Page) -> Vec<&str> {
    page.sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect()
}

#[test]
fn pages_go_on_where_the_last_one_ended() {
    let (_dir, registry) = registry();
    registry.change(|change| (0..5).try_for_each(|n| change.add_sandbox(&sandbox(n, &[])).map(|_| ()))).unwrap();
    let mut filter = Filter { limit: Some(2), ..Filter::default() };
    let first = registry.sandboxes(&filter).unwrap();
    assert_eq!(ids(&first), ["sb-0000", "sb-0001"]);
    filter.after = first.next.unwrap();
    let second = registry.sandboxes(&filter).unwrap();
    assert_eq!(ids(&second), ["sb-0002", "sb-0003"]);
    filter.after = second.next.unwrap();
    let last = registry.sandboxes(&filter).unwrap();
    assert_eq!((ids(&last), last.next), (vec!["sb-0004"], None));
    let none = registry.sandboxes(&Filter { limit: Some(0), ..Filter::default() }).unwrap();
    assert_eq!((none.sandboxes.len(), none.next), (0, None));
}

#[test]
fn tags_labels_and_states_filter() {
    let (_dir, registry) = registry();
    let made = [sandbox(0, &[("a", "1"), ("b", "2")]), sandbox(1, &[("a", "1")]), sandbox(2, &[("a.b\"", "x")])];
    registry.change(|change| made.iter().try_for_each(|new| change.add_sandbox(new).map(|_| ()))).unwrap();
    registry.change(|change| change.end_sandbox("sb-0001", EventKind::SandboxGone, "it died")).unwrap();
    let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let by = |filter| ids(&registry.sandboxes(&filter).unwrap()).into_iter().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(by(Filter::default()), ["sb-0000", "sb-0002"]);
    assert_eq!(by(Filter { status: Some(SandboxStatus::Gone), ..Filter::default() }), ["sb-0001"]);
    assert_eq!(by(Filter { tag: Some("even".into()), ..Filter::default() }), ["sb-0000", "sb-0002"]);
    assert_eq!(by(Filter { labels: labels(&[("a", "1"), ("b", "2")]), ..Filter::default() }), ["sb-0000"]);
    assert_eq!(by(Filter { labels: labels(&[("a.b\"", "x")]), ..Filter::default() }), ["sb-0002"]);
    assert!(by(Filter { labels: labels(&[("a", "2")]), ..Filter::default() }).is_empty());
}

#[test]
fn an_end_is_told_once_and_a_kill_leaves_nothing() {
    let (_dir, registry) = registry();
    registry.change(|change| change.add_sandbox(&sandbox(1, &[])).map(|_| ())).unwrap();
    let before = registry.last_event().unwrap();
    for _ in 0..2 {
        registry.change(|change| change.end_sandbox("sb-0001", EventKind::SandboxGone, "it died")).unwrap();
    }
    assert_eq!(registry.last_event().unwrap(), before + 1);
    let gone = registry.sandbox("sb-0001").unwrap().unwrap();
    assert_eq!((gone.status, gone.reason.as_deref(), gone.pid), (SandboxStatus::Gone, Some("it died"), None));
    registry.change(|change| change.remove_sandbox("sb-0001")).unwrap();
    assert_eq!(registry.last_event().unwrap(), before + 1, "it was told already");
    assert_eq!(registry.sandbox("sb-0001").unwrap(), None);
}

#[test]
fn a_renewal_changes_what_it_names() {
    let (_dir, registry) = registry();
    registry.change(|change| change.add_sandbox(&sandbox(1, &[("a", "1")])).map(|_| ())).unwrap();
    let renew = |expires, labels: Option<&BTreeMap<_, _>>| {
        assert!(registry.change(|change| change.renew_sandbox("sb-0001", expires, labels)).unwrap());
        let now = registry.sandbox("sb-0001").unwrap().unwrap();
        (now.expires_unix, now.labels.len())
    };
    assert_eq!(renew(Some(Some(50)), None), (Some(50), 1));
    assert_eq!(registry.expired(49).unwrap().len(), 0);
    assert_eq!(registry.expired(50).unwrap().len(), 1);
    assert_eq!(renew(None, Some(&BTreeMap::new())), (Some(50), 0));
    assert_eq!(renew(Some(None), None), (None, 0));
    assert!(!registry.change(|change| change.renew_sandbox("sb-none", None, None)).unwrap());
}

#[test]
fn a_thousand_come_in_one_change_and_quickly() {
    let (_dir, registry) = registry();
    let begun = std::time::Instant::now();
    registry.change(|change| (0..1000).try_for_each(|n| change.add_sandbox(&sandbox(n, &[])).map(|_| ()))).unwrap();
    assert_eq!(registry.count_sandboxes().unwrap(), [("running".to_owned(), 1000)]);
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[test]
fn a_batch_costs_the_same_however_many_there_are() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    const BATCH: usize = 1000;
    let (_dir, registry) = registry();
    // Steps of SQLite's own machine: unlike time, they are the same every time.
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    };
    registry.lock().progress_handler(100, Some(count));
    let create = |batch: usize| {
        let before = steps.load(Ordering::Relaxed);
        let all = batch * BATCH..(batch + 1) * BATCH;
        registry
            .change(|change| all.clone().try_for_each(|n| change.add_sandbox(&sandbox(n, &[])).map(|_| ())))
            .unwrap();
        steps.load(Ordering::Relaxed) - before
    };
    let costs: Vec<usize> = (0..8).map(create).collect();
    assert!(costs[0] > BATCH / 100, "nothing is counted: {costs:?}");
    assert!(costs[7] <= costs[0] * 3 / 2, "the last thousand cost more than the first: {costs:?}");
    let before = steps.load(Ordering::Relaxed);
    assert!(registry.sandbox("sb-7000").unwrap().is_some());
    assert!(steps.load(Ordering::Relaxed) - before <= 1, "one is found without looking at all");
}

#[test]
fn nobody_lets_it_live_longer_while_its_end_is_begun() {
    let (_dir, registry) = registry();
    let mortal = Sandbox { expires_unix: Some(10), ..sandbox(0, &[]) };
    registry.change(|change| change.add_sandbox(&mortal)).unwrap();
    let is_alone = || registry.connection.try_lock().is_err();
    assert_eq!(registry.if_expired(&mortal.id, 9, is_alone).unwrap(), None);
    assert_eq!(registry.if_expired(&mortal.id, 10, is_alone).unwrap(), Some(true));
    assert!(registry.change(|change| change.renew_sandbox(&mortal.id, Some(Some(20)), None)).unwrap());
    assert_eq!(registry.if_expired(&mortal.id, 10, is_alone).unwrap(), None);
    registry.change(|change| change.end_sandbox(&mortal.id, EventKind::SandboxExpired, "x")).unwrap();
    assert_eq!(registry.if_expired(&mortal.id, 30, is_alone).unwrap(), None, "it ended before");
    assert!(!registry.change(|change| change.renew_sandbox(&mortal.id, Some(None), None)).unwrap());
}
