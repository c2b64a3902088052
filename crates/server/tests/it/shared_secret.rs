//! What instances on one database know alike.

use tympan_server::{MIGRATIONS, shared_secret};
use tympan_testkit::State;
use tympan_testkit::postgres::PostgresServer;

async fn connect(schema: &str) -> State {
    let state = State::connect(&PostgresServer::shared().url(), schema).await.unwrap();
    state.migrate("server", MIGRATIONS).await.unwrap();
    state
}

#[tokio::test]
async fn authors_on_one_database_share_the_key_that_the_first_brought() {
    let schema = PostgresServer::new_schema();
    let authors = [connect(&schema).await, connect(&schema).await, connect(&schema).await];
    // All start at the same time, each with the key of its own home.
    let [one, two, three] = &authors;
    let secret = async |state: &State, own: &str| {
        shared_secret(state.pool(), "replication.key", own).await.unwrap()
    };
    let keys = tokio::join!(
        secret(one, "the key of the first home"),
        secret(two, "the key of the second home"),
        secret(three, "the key of the third home"),
    );
    assert!(keys.0 == keys.1 && keys.1 == keys.2, "{keys:?}");
    assert!(keys.0.starts_with("the key of the "), "{keys:?}");
    // A home that comes later brings none in its place, also after all have been stopped.
    for state in &authors {
        state.close().await;
    }
    let later = connect(&schema).await;
    assert_eq!(secret(&later, "the key of a later home").await, keys.0);
    assert_eq!(shared_secret(later.pool(), "another", "its own").await.unwrap(), "its own");
    later.close().await;
}
