//! gRPC health and reflection, the same on every server.

use super::methods;
use crate::health::Readiness;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_reflection::server as reflection;

/// Adds health (following `readiness`, for the whole server and for each of
/// `services`) and reflection (v1 and v1alpha), which shows `services`, what
/// their files define, and health. `services` are full names
/// ("talweg.v1.ProduceService"): a public server names only those of `talweg.v1`.
///
/// # Errors
/// The descriptors do not hold together: a defect.
pub fn add_builtin(
    routes: Routes,
    readiness: &Readiness,
    services: &[&'static str],
) -> Result<Routes, reflection::Error> {
    let builder = || {
        let mut builder = reflection::Builder::configure()
            .include_reflection_service(false)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_file_descriptor_set(methods::files_of(services))
            .with_service_name("grpc.health.v1.Health");
        for service in services {
            builder = builder.with_service_name(*service);
        }
        builder
    };
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report(reporter, readiness.clone(), services.to_vec()));
    Ok(routes
        .add_service(health)
        .add_service(builder().build_v1()?)
        .add_service(builder().build_v1alpha()?))
}

/// Follows the readiness until the server is gone.
async fn report(reporter: HealthReporter, readiness: Readiness, services: Vec<&'static str>) {
    let mut changes = readiness.watch();
    // Only the receiver is kept: the task ends with the last `Readiness`.
    drop(readiness);
    loop {
        let status = match *changes.borrow_and_update() {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        };
        for service in services.iter().chain(&[""]) {
            reporter.set_service_status(*service, status).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
