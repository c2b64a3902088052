//! What instances on one database know alike.

use tympan_server::{SERVER_MIGRATIONS, ensure_shared_secret};
use tympan_testkit::StateDatabase;
use tympan_testkit::postgres_server::PostgresServer;

async fn connect(schema: &str) -> StateDatabase {
    let state =
        StateDatabase::connect(&PostgresServer::shared_server().url(), schema).await.unwrap();
    state.migrate_tables("server", SERVER_MIGRATIONS).await.unwrap();
    state
}

#[tokio::test]
async fn authors_on_one_database_share_the_key_that_the_first_brought() {
    let schema = PostgresServer::unique_schema_name();
    let authors = [connect(&schema).await, connect(&schema).await, connect(&schema).await];
    // All start at the same time, each with the key of its own home.
    let [one, two, three] = &authors;
    let secret = async |state: &StateDatabase, own: &str| {
        ensure_shared_secret(state.pool(), "replication.key", own).await.unwrap()
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
    assert_eq!(ensure_shared_secret(later.pool(), "another", "its own").await.unwrap(), "its own");
    later.close().await;
}
