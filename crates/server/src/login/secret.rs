//! Secrets shared by all instances on one database.

use sqlx::{AnyPool, Row};

/// Returns the shared secret with the given name. The value provided by the first instance is kept.
///
/// # Errors
/// With the database's reason.
pub async fn ensure_shared_secret(
    pool: &AnyPool,
    name: &str,
    own: &str,
) -> Result<String, sqlx::Error> {
    sqlx::query(
        "INSERT INTO instance_secret (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
    )
    .bind(name)
    .bind(own)
    .execute(pool)
    .await?;
    let row = sqlx::query("SELECT value FROM instance_secret WHERE name = $1")
        .bind(name)
        .fetch_one(pool)
        .await?;
    row.try_get(0)
}
