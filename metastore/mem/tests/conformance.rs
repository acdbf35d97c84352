//! The in-memory metastore passes the suite of every backend.

use talweg_metastore::conformance::Fresh;
use talweg_metastore_mem::MemMetastore;

async fn fresh() -> Fresh {
    Fresh::new(MemMetastore::default())
}

talweg_metastore::conformance_suite!(fresh);
