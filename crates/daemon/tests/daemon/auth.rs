//! Who may do what, on every route that is documented.

use serde_json::json;

use crate::support::{HOLES, TOKEN, World};

#[test]
fn no_route_is_open_without_a_token_that_is_valid() {
    let world = World::closed();
    let filled =
        |(method, path)| (method, HOLES.iter().fold(path, |path: String, (hole, name)| path.replace(hole, name)));
    let routes: Vec<_> = world.routes().into_iter().map(filled).collect();
    for wanted in ["/v1/sandboxes/sb-1/ports/80", "/v1/sandboxes/sb-1/ports/80/x", "/v1/sandboxes/sb-1/lines"] {
        assert!(routes.iter().any(|(_, path)| path == wanted), "{wanted} is not in {routes:?}");
    }
    let short = world.post("/v1/tokens", json!({ "name": "short", "scopes": ["admin"], "ttl_secs": 1 }), 201);
    let expired = format!("Bearer {}", short["token"].as_str().unwrap());
    let status = |method: &str, path: &str, headers: &[(&str, &str)]| world.ask_tcp(method, path, headers, None);
    crate::support::wait_until("the end of a token", || {
        status("GET", "/version", &[("authorization", &expired)]).status == 401
    });
    for (method, path) in routes.iter().filter(|(_, path)| path != "/healthz") {
        assert_eq!(status(method, path, &[]).code(401), "missing_token", "{method} {path}");
        for bad in ["Bearer wrong", &expired, &format!("Bearer {TOKEN}x")] {
            assert_eq!(status(method, path, &[("authorization", bad)]).code(401), "invalid_token", "{method} {path}");
        }
        for none in ["", "Bearer", &format!("Basic {TOKEN}")] {
            assert_eq!(status(method, path, &[("authorization", none)]).code(401), "missing_token", "{method} {path}");
        }
    }
    for path in ["/healthz", "/healthz/"] {
        assert_eq!(status("GET", path, &[]).status, 200);
    }
    let authorization = format!("bearer {TOKEN}");
    assert_eq!(status("GET", "/v1/sandboxes", &[("authorization", &authorization)]).status, 200);
    assert_eq!(status("GET", "/nowhere", &[]).code(401), "missing_token");
}

#[test]
fn a_scope_is_all_that_a_token_has() {
    let world = World::closed();
    let token = |scope: &str| {
        let made = world.post("/v1/tokens", json!({ "name": scope, "scopes": [scope] }), 201);
        format!("Bearer {}", made["token"].as_str().unwrap())
    };
    let [read, exec, spawn] = ["read", "exec", "spawn"].map(token);
    let json = ("content-type", "application/json");
    let ask = |token: &str, method: &str, path: &str, body: Option<&str>| {
        world.ask_tcp(method, path, &[("authorization", token), json], body)
    };
    assert_eq!(ask(&read, "GET", "/v1/sandboxes", None).status, 200);
    assert_eq!(ask(&exec, "GET", "/v1/sandboxes", None).code(403), "forbidden");
    let create = Some(r#"{"snapshot_tag":"base"}"#);
    assert_eq!(ask(&read, "POST", "/v1/sandboxes", create).code(403), "forbidden");
    let made = ask(&spawn, "POST", "/v1/sandboxes", create).expect(201).json();
    let path = format!("/v1/sandboxes/{}/exec", made[0]["id"].as_str().unwrap());
    let run = Some(r#"{"args":["echo"]}"#);
    assert_eq!(ask(&spawn, "POST", &path, run).code(403), "forbidden");
    assert_eq!(ask(&exec, "POST", &path, run).status, 200);
    for token in [&read, &exec, &spawn] {
        assert_eq!(ask(token, "GET", "/v1/tokens", None).code(403), "forbidden");
        assert_eq!(ask(token, "POST", "/v1/snapshots", Some(r#"{"tag":"x"}"#)).code(403), "forbidden");
    }
    let listed = world.get("/v1/tokens");
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(!listed.to_string().contains("forkd_"), "{listed}");
    world.ask("DELETE", "/v1/tokens/read", None).expect(204);
    assert_eq!(ask(&read, "GET", "/v1/sandboxes", None).code(401), "invalid_token");
    assert_eq!(world.ask("DELETE", "/v1/tokens/read", None).code(404), "token_not_found");
    let audit = std::fs::read_to_string(world.dirs.data.join("audit.log")).unwrap();
    assert!(audit.contains(r#""actor":"spawn""#) && !audit.contains(spawn.trim_start_matches("Bearer ")), "{audit}");
}
