//! Configurations of topics and brokers.

use std::future::IntoFuture;
use std::sync::Arc;

use corduroy_protocol::messages::describe_configs_request::DescribeConfigsResource;
use corduroy_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use corduroy_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use super::{Admin, AdminCall, check};
use crate::client::{ClientShared, Target};
use crate::error::{Error, ErrorKind, Outcome};
use crate::net::api::{Api, StrBytes};

/// What a configuration belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConfigResource {
    /// A topic.
    Topic(String),
    /// A broker, by id.
    Broker(i32),
    /// All brokers: the cluster-wide values.
    Cluster,
}

impl ConfigResource {
    /// The resource type on the wire, and its name.
    fn wire(&self) -> (i8, StrBytes) {
        const TOPIC: i8 = 2;
        const BROKER: i8 = 4;
        match self {
            ConfigResource::Topic(name) => (TOPIC, StrBytes::from_string(name.clone())),
            ConfigResource::Broker(id) => (BROKER, StrBytes::from_string(id.to_string())),
            ConfigResource::Cluster => (BROKER, StrBytes::from_static_str("")),
        }
    }

    /// A broker knows and changes its own configuration only.
    fn target(&self, others: Target) -> Target {
        match self {
            ConfigResource::Broker(id) => Target::Node(*id),
            ConfigResource::Topic(_) | ConfigResource::Cluster => others,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigSource {
    /// Set on the topic.
    Topic,
    /// Set on this broker, at run time.
    Broker,
    /// Set on all brokers, at run time.
    Cluster,
    /// In the broker's configuration file.
    File,
    /// Set by nobody.
    Default,
    /// Something newer.
    Unknown(i8),
}

impl ConfigSource {
    fn from_wire(source: i8) -> ConfigSource {
        match source {
            1 => ConfigSource::Topic,
            2 => ConfigSource::Broker,
            3 => ConfigSource::Cluster,
            4 => ConfigSource::File,
            5 => ConfigSource::Default,
            other => ConfigSource::Unknown(other),
        }
    }
}

/// One configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigEntry {
    /// Its name.
    pub name: String,
    /// Its value; `None` where it is secret.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// It cannot be changed at run time.
    pub read_only: bool,
    /// It is secret.
    pub sensitive: bool,
    /// What it means, where the broker says.
    pub documentation: Option<String>,
}

impl Admin {
    /// All configuration values of a resource, by name.
    ///
    /// # Errors
    /// UnknownTopic; why no broker answered.
    pub async fn describe_configs(
        &self,
        resource: &ConfigResource,
    ) -> Result<Vec<ConfigEntry>, Error> {
        let deadline = self.client.api_deadline();
        let (kind, name) = resource.wire();
        let answer =
            self.client
                .ask(
                    resource.target(Target::Any),
                    deadline,
                    |version| {
                        let wanted = DescribeConfigsResource::default()
                            .with_resource_type(kind)
                            .with_resource_name(name.clone())
                            .with_configuration_keys(None);
                        DescribeConfigsRequest::default()
                            .with_resources(vec![wanted])
                            .with_include_documentation(version >= 3)
                    },
                    |answer| {
                        answer.results.iter().try_for_each(|part| {
                            check(part.error_code, part.error_message.as_deref())
                        })
                    },
                )
                .await?;
        let mut entries: Vec<ConfigEntry> = answer
            .results
            .into_iter()
            .flat_map(|part| part.configs)
            .map(|config| ConfigEntry {
                name: config.name.to_string(),
                value: config.value.map(|value| value.to_string()),
                source: ConfigSource::from_wire(config.config_source),
                read_only: config.read_only,
                sensitive: config.is_sensitive,
                documentation: config.documentation.map(|text| text.to_string()),
            })
            .collect();
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }

    /// Changes configuration values of a resource: add changes, then await.
    pub fn alter_configs(&self, resource: ConfigResource) -> AlterConfigs {
        AlterConfigs {
            client: self.client.clone(),
            resource,
            changes: Vec::new(),
            validate_only: false,
        }
    }
}

/// Changes to configuration values (KIP-339): what is not named stays. Await it.
#[must_use = "nothing is changed until it is awaited"]
pub struct AlterConfigs {
    client: Arc<ClientShared>,
    resource: ConfigResource,
    changes: Vec<(String, i8, Option<String>)>,
    validate_only: bool,
}

impl AlterConfigs {
    fn change(mut self, name: &str, operation: i8, value: Option<String>) -> AlterConfigs {
        self.changes.push((name.to_owned(), operation, value));
        self
    }

    /// Sets a value.
    pub fn set(self, name: &str, value: impl Into<String>) -> AlterConfigs {
        self.change(name, 0, Some(value.into()))
    }

    /// Goes back to the default.
    pub fn delete(self, name: &str) -> AlterConfigs {
        self.change(name, 1, None)
    }

    /// Adds to a list.
    pub fn append(self, name: &str, value: impl Into<String>) -> AlterConfigs {
        self.change(name, 2, Some(value.into()))
    }

    /// Takes out of a list.
    pub fn subtract(self, name: &str, value: impl Into<String>) -> AlterConfigs {
        self.change(name, 3, Some(value.into()))
    }

    /// Only checks whether the changes would be accepted.
    pub fn validate_only(mut self) -> AlterConfigs {
        self.validate_only = true;
        self
    }

    async fn run(self) -> Result<(), Error> {
        let deadline = self.client.api_deadline();
        let (kind, name) = self.resource.wire();
        let configs: Vec<AlterableConfig> = self
            .changes
            .iter()
            .map(|(name, operation, value)| {
                AlterableConfig::default()
                    .with_name(StrBytes::from_string(name.clone()))
                    .with_config_operation(*operation)
                    .with_value(value.clone().map(StrBytes::from_string))
            })
            .collect();
        // SET and DELETE may be repeated; so may the others as far as sets are concerned, which is
        // what Kafka's list configurations are.
        let answer =
            self.client
                .ask(
                    self.resource.target(Target::Controller),
                    deadline,
                    |_version| {
                        let resource = AlterConfigsResource::default()
                            .with_resource_type(kind)
                            .with_resource_name(name.clone())
                            .with_configs(configs.clone());
                        IncrementalAlterConfigsRequest::default()
                            .with_resources(vec![resource])
                            .with_validate_only(self.validate_only)
                    },
                    |answer| {
                        answer.responses.iter().try_for_each(|part| {
                            check(part.error_code, part.error_message.as_deref())
                        })
                    },
                )
                .await?;
        if answer.responses.is_empty() {
            let message = "the answer does not mention the resource";
            return Err(Error::new(ErrorKind::Malformed, message)
                .with_api(IncrementalAlterConfigsRequest::NAME)
                .with_outcome(Outcome::Unknown));
        }
        Ok(())
    }
}

impl IntoFuture for AlterConfigs {
    type Output = Result<(), Error>;
    type IntoFuture = AdminCall<()>;

    fn into_future(self) -> AdminCall<()> {
        Box::pin(self.run())
    }
}
