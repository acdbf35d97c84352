//! What the client asks for, and the answers to it.

use super::*;

impl FetchStream {
    pub(super) async fn on_frame(&mut self, request: FetchRequest) -> Result<(), Ended> {
        match request.frame {
            Some(fetch_request::Frame::Credit(credit)) => Ok(self.reading.credit.grant(credit)?),
            Some(fetch_request::Frame::Update(update)) => {
                self.on_update(update);
                Ok(())
            }
            Some(fetch_request::Frame::Heartbeat(_)) => Ok(()),
            Some(fetch_request::Frame::Credentials(_)) => {
                let refusal =
                    Refusal::not_built("Refreshed credentials are not built in this version.");
                let error = v1::FetchPartitionError {
                    error: Some(refusal.detail()),
                    ..Default::default()
                };
                Ok(self.send(Frame::PartitionError(error)).await?)
            }
            Some(fetch_request::Frame::Open(_)) => {
                Err(violation("the stream is open already").into())
            }
            None => Err(violation("a frame without content").into()),
        }
    }

    pub(super) fn on_update(&mut self, update: FetchUpdate) {
        for request in &update.remove {
            if let Some(partition) = self.reading.readers.named(request) {
                self.forget(partition);
            }
        }
        let mut pending = Pending::new(
            Asked::Update(update.update_id),
            self.now_ms() + ANSWER_WAIT_MS,
        );
        for request in &update.seek {
            self.start(request, true, &mut pending);
        }
        for request in &update.add {
            self.start(request, false, &mut pending);
        }
        self.updates.push(pending);
    }

    /// Drops everything about a partition.
    pub(super) fn forget(&mut self, partition: TopicPartition) {
        self.updates.forget(partition);
        self.reading.remove(partition);
    }

    /// Begins to read; `moves`: a seek, from wherever it stands.
    pub(super) fn start(&mut self, request: &FetchPartition, moves: bool, pending: &mut Pending) {
        let view = self.node.view.get();
        let readers = &self.reading.readers;
        let admitted = open::interest(&view, request).and_then(|(reader, interest)| {
            let partition = interest.partition;
            if !moves && readers.contains(partition) {
                let message = format!(
                    "partition {} of {:?} is on this stream already",
                    partition.partition, reader.name
                );
                return Err(Refusal::new(ErrorCode::DuplicatePartition, message));
            }
            let known = usize::from(readers.contains(partition));
            open::check_count(readers.len() + 1 - known)?;
            Ok((reader, interest))
        });
        match admitted {
            Err(refusal) => pending.errors.push(open::refused(request, &refusal)),
            Ok((reader, interest)) => {
                let partition = interest.partition;
                self.updates.forget(partition);
                pending.wait_for(partition);
                self.reading.start(reader, interest);
            }
        }
    }

    pub(super) async fn answer_updates(&mut self) -> Result<(), Ended> {
        while let Some(pending) = self.updates.pop(self.now_ms()) {
            let Pending {
                asked,
                positions,
                errors,
                ..
            } = pending;
            match asked {
                Asked::Open => {
                    let opened = v1::FetchOpened {
                        positions,
                        heartbeat_interval_ms: self.node.heartbeat_interval_ms(),
                        node_id: self.node.id(),
                    };
                    self.send(Frame::Opened(opened)).await?;
                    self.send_errors(errors).await?;
                }
                Asked::Update(update_id) => {
                    self.send_errors(errors).await?;
                    self.send(Frame::Updated(v1::FetchUpdated {
                        update_id,
                        positions,
                    }))
                    .await?;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn send_errors(
        &mut self,
        errors: Vec<v1::FetchPartitionError>,
    ) -> Result<(), Ended> {
        for error in errors {
            self.send(Frame::PartitionError(error)).await?;
        }
        Ok(())
    }

    pub(super) async fn on_drain(&mut self, drain: Drain) -> Result<(), Ended> {
        self.drain = Some(drain);
        // No data follows, so that the token stays true.
        let positions = self
            .reading
            .readers
            .iter()
            .filter_map(|(partition, reader)| {
                Some(token::Position {
                    partition: *partition,
                    next_offset: reader.position.as_ref()?.next_offset,
                    last_epoch: reader.last_epoch,
                })
            });
        let resume_token = token::fetch(
            &self.node.view.get().cluster_id,
            &positions.collect::<Vec<_>>(),
        );
        let frame = v1::Drain {
            reason: "this gateway is stopping".into(),
            deadline_ms: ms_until(drain.deadline),
            resume_token,
        };
        self.send(Frame::Drain(frame)).await
    }
}
