//! What is said about networks to whoever has none; those who have one are VMs.

use serde_json::json;

use crate::support::World;

#[test]
fn who_has_no_network_is_told_so_and_none_is_made() {
    let world = World::open();
    let refused = world.ask("POST", "/v1/sandboxes", Some(json!({ "snapshot_tag": "base", "egress": "all" })));
    assert_eq!(refused.code(409), "no_network");
    // Published clients ask for it whatever the snapshot has.
    let asked = json!({ "snapshot_tag": "base", "per_child_netns": true });
    assert_eq!(world.post("/v1/sandboxes", asked, 201)[0]["netns"], json!(null));
    let id = world.spawn(1).remove(0);
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}"))["netns"], json!(null));
    assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{id}/net"), None).code(409), "no_network");
    let path = format!("/v1/sandboxes/{id}/egress");
    for egress in [json!("none"), json!(["a.org:443", "10.0.0.0/8"])] {
        assert_eq!(world.ask("PUT", &path, Some(json!({ "egress": egress }))).code(409), "no_network");
    }
    for egress in [json!("a.org:99999"), json!(["all", "a.org"]), json!([])] {
        assert_eq!(world.ask("PUT", &path, Some(json!({ "egress": egress }))).code(400), "invalid_request");
    }
    assert_eq!(world.ask("GET", "/v1/sandboxes/sb-none/net", None).code(404), "sandbox_not_found");
}
