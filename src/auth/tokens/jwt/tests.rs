use super::*;
use std::path::PathBuf;

const TTL: Duration = Duration::from_secs(300);

fn key(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/auth/tokens/jwt/keys").join(name)
}

fn options(method: &str, private: Option<&str>, public: Option<&str>) -> JwtOptions {
    JwtOptions {
        sign_method: method.into(),
        private_key: private.map(key),
        public_key: public.map(key),
        ttl: TTL,
    }
}

fn jwt(method: &str, private: Option<&str>, public: Option<&str>) -> Jwt {
    Jwt::new(&options(method, private, public)).unwrap()
}

fn refused(method: &str, private: Option<&str>, public: Option<&str>) -> String {
    match Jwt::new(&options(method, private, public)) {
        Ok(_) => panic!("{method} {private:?} {public:?} is taken"),
        Err(why) => why,
    }
}

#[test]
fn every_method_takes_its_own_tokens_and_nobody_elses() {
    let rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"].map(|m| (m, "rsa.pem"));
    let hmac = ["HS256", "HS384", "HS512"].map(|method| (method, "rsa-public.pem"));
    let others = [("ES256", "p256.pem"), ("ES384", "p384.pem"), ("ES512", "p521.pem")];
    let others = others.into_iter().chain([("EdDSA", "ed25519.pem")]);
    let all: Vec<_> = rsa.into_iter().chain(hmac).chain(others).collect();
    let tokens: Vec<_> = all.iter().map(|(method, file)| jwt(method, Some(file), None)).collect();
    for (giver, (method, _)) in tokens.iter().zip(&all) {
        let token = giver.give("ann", 7).unwrap();
        for (taker, (other, _)) in tokens.iter().zip(&all) {
            let expected = (method == other).then(|| ("ann".to_owned(), 7));
            assert_eq!(taker.check(&token), expected, "{method} at {other}");
        }
    }
}

#[test]
fn files_in_all_their_forms() {
    for (method, private, public) in [
        ("RS256", "rsa.pem", "rsa-public.pem"),
        ("RS256", "rsa-pkcs1.pem", "rsa-public-pkcs1.pem"),
        ("PS512", "rsa-pkcs1.pem", "rsa-certificate.pem"),
        ("ES256", "p256.pem", "p256-public.pem"),
        ("ES256", "p256-pkcs8.pem", "p256-certificate.pem"),
        ("ES384", "p384.pem", "p384-public.pem"),
        ("ES512", "p521.pem", "p521-public.pem"),
        ("ES512", "p521-pkcs8.pem", "p521-certificate.pem"),
        // Openssl's "-no_public".
        ("ES512", "p521-secret.pem", "p521-public.pem"),
        ("EdDSA", "ed25519.pem", "ed25519-public.pem"),
    ] {
        let both = jwt(method, Some(private), Some(public));
        let checks_only = jwt(method, None, Some(public));
        let token = jwt(method, Some(private), None).give("ann", 3).unwrap();
        assert_eq!(both.check(&token), Some(("ann".into(), 3)), "{private} {public}");
        assert_eq!(checks_only.check(&token), Some(("ann".into(), 3)), "{public}");
        assert_eq!(checks_only.give("ann", 3), Err(TokenError::VerifyOnly));
    }
}

#[test]
fn what_is_wrong_with_options_is_said() {
    assert!(refused("", None, None).contains("sign-method \"\" is not supported"));
    assert!(refused("none", None, None).contains("not supported"));
    assert!(refused("ES521", Some("p521.pem"), None).contains("not supported"));
    assert!(refused("HS256", None, Some("rsa-public.pem")).contains("priv-key is missing"));
    assert!(refused("RS256", None, None).contains("pub-key or priv-key is missing"));
    assert!(refused("RS256", Some("nowhere.pem"), None).contains("nowhere.pem"));
    assert!(refused("RS256", Some("rsa-public.pem"), None).contains("no private key"));
    assert!(refused("RS256", None, Some("rsa.pem")).contains("no public key"));
    assert!(refused("RS256", Some("ed25519.pem"), None).contains("can't be used"));
    assert!(refused("RS256", None, Some("p256-public.pem")).contains("of another kind"));
    assert!(refused("ES256", Some("p384.pem"), None).contains("another curve"));
    assert!(refused("ES384", Some("p256-pkcs8.pem"), None).contains("another curve"));
    assert!(refused("ES256", None, Some("p384-public.pem")).contains("another curve"));
    assert!(refused("ES384", Some("p521.pem"), None).contains("another curve"));
    assert!(refused("ES512", Some("p384.pem"), None).contains("another curve"));
    assert!(refused("ES512", Some("p256-pkcs8.pem"), None).contains("another curve"));
    assert!(refused("ES512", Some("ed25519.pem"), None).contains("can't be used"));
    assert!(refused("ES512", None, Some("p384-public.pem")).contains("another curve"));
    assert!(refused("ES512", None, Some("p256-certificate.pem")).contains("another curve"));
    let strangers = refused("ES512", Some("p521.pem"), Some("p521-other-public.pem"));
    assert!(strangers.contains("don't belong together"));
    let strangers = refused("RS256", Some("rsa-other.pem"), Some("rsa-public.pem"));
    assert!(strangers.contains("don't belong together"));
}

#[test]
fn claims() {
    let tokens = jwt("HS256", Some("rsa.pem"), None);
    let header = json!({ "alg": "HS256", "typ": "JWT" });
    let check = |claims: Value| tokens.check_at(&tokens.sign(&header, &claims).unwrap(), 1000);
    let good = Some(("ann".to_owned(), 5));
    let base = || json!({ "username": "ann", "revision": 5 });
    let with = |name: &str, value: Value| {
        let mut claims = base();
        claims[name] = value;
        claims
    };
    assert_eq!(check(base()), good, "a token need not end");
    assert_eq!(check(with("exp", json!(1001))), good);
    assert_eq!(check(with("exp", json!(1000))), None);
    assert_eq!(check(with("exp", json!("1001"))), None);
    assert_eq!(check(with("nbf", json!(1000))), good);
    assert_eq!(check(with("nbf", json!(1001))), None);
    assert_eq!(check(with("revision", json!(5.0))), good);
    assert_eq!(check(with("revision", json!("5"))), None);
    assert_eq!(check(with("username", json!(5))), None);
    assert_eq!(check(json!({ "revision": 5 })), None);
    assert_eq!(check(json!({ "username": "ann" })), None);
    assert_eq!(check(json!(["ann"])), None);
    assert_eq!(check(json!(null)), None);
}

/// On the curve that `ring` doesn't have.
#[test]
fn forged_tokens_of_es512() {
    let tokens = jwt("ES512", Some("p521.pem"), None);
    let token = tokens.give("ann", 5).unwrap();
    assert_eq!(tokens.check(&token), Some(("ann".into(), 5)));
    let (message, signature) = token.rsplit_once('.').unwrap();
    let signature = BASE64.decode(signature).unwrap();
    assert_eq!(signature.len(), 132);
    let with = |signature: &[u8]| format!("{message}.{}", BASE64.encode(signature));
    let mut changed = signature.clone();
    changed[131] ^= 1;
    let (header, _) = message.split_once('.').unwrap();
    let claims = BASE64.encode(json!({ "username": "root", "revision": 5 }).to_string());
    for forged in [
        with(&changed),
        with(&signature[..131]),
        with(&[0; 132]),
        with(&[]),
        format!("{header}.{claims}.{}", BASE64.encode(&signature)),
        jwt("ES384", Some("p384.pem"), None).give("root", 5).unwrap(),
    ] {
        assert_eq!(tokens.check(&forged), None, "{forged}");
    }
}

#[test]
fn forged_and_broken_tokens() {
    let tokens = jwt("RS256", Some("rsa.pem"), None);
    let token = tokens.give("ann", 5).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    // What is signed with the public key as a secret, or not at all, has the wrong method.
    let confused = jwt("HS256", Some("rsa-public.pem"), None).give("root", 5).unwrap();
    let none = BASE64.encode(json!({ "alg": "none" }).to_string());
    let other = jwt("RS256", Some("rsa-other.pem"), None).give("root", 5).unwrap();
    for broken in [
        "",
        "a.b.c",
        "..",
        &confused,
        &other,
        &format!("{none}.{}.", parts[1]),
        &format!("{}.{}.", parts[0], parts[1]),
        &format!("{}.{}", parts[0], parts[1]),
        &format!("{token}.x"),
        &"a".repeat(LENGTH_MAX + 1),
    ] {
        assert_eq!(tokens.check(broken), None, "{broken}");
    }
    let later = clock::unix_seconds() + 300;
    assert_eq!(tokens.check_at(&token, later + 1), None, "its time is over");
    assert!(tokens.check_at(&token, later - 10).is_some());
}
