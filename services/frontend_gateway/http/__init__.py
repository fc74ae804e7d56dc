"""The HTTP surface: routes, rights, problems, streams, OpenAPI and pages."""
