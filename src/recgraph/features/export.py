"""Feast's definitions as the serving side's schema (needs Feast: for jobs only)."""

from __future__ import annotations

from feast import FeatureService, FeatureStore, FeatureView
from feast.value_type import ValueType

from recgraph.errors import DataError
from recgraph.features.schema import DType, Entity, FeatureSet, Field, ViewSchema

_DTYPES: dict[ValueType, DType] = {
    ValueType.FLOAT: "float32",
    ValueType.DOUBLE: "float64",
    ValueType.INT64: "int64",
    ValueType.STRING: "text",
    ValueType.FLOAT_LIST: "float32_list",
    ValueType.INT64_LIST: "int64_list",
    ValueType.STRING_LIST: "text_list",
}
_ENTITIES: dict[tuple[str, ...], Entity] = {("user_id",): "user", ("item_id",): "item"}


def view_schema(view: FeatureView) -> ViewSchema:
    """The schema of one view; DataError names a field type or an entity that packed blobs do not know."""
    entity = _ENTITIES.get(tuple(view.join_keys))
    if entity is None:
        raise DataError(f"view {view.name} has the join keys {view.join_keys}; known are user_id and item_id")
    fields = []
    for field in view.features:
        dtype = _DTYPES.get(field.dtype.to_value_type())
        if dtype is None:
            raise DataError(f"view {view.name}, field {field.name}: {field.dtype} cannot be packed")
        fields.append(Field(field.name, dtype))
    ttl_s = int(view.ttl.total_seconds()) if view.ttl else 0
    return ViewSchema(view.name, entity, ttl_s, tuple(fields))


def feature_set(store: FeatureStore) -> FeatureSet:
    """All services of the applied project and the views they read, as a bundle's features.json carries them."""
    services = {service.name: _views_of(store, service) for service in store.list_feature_services()}
    if not services:
        raise DataError(f"project {store.project} has no feature service: run `feast apply` in feast_repo/ first")
    names = sorted({name for views in services.values() for name in views})
    views = tuple(view_schema(store.get_feature_view(name)) for name in names)
    return FeatureSet(store.project, views, dict(sorted(services.items())))


def _views_of(store: FeatureStore, service: FeatureService) -> tuple[str, ...]:
    """The names of a service's views, which must be whole: a blob is read at once or not at all."""
    for projection in service.feature_view_projections:
        view = store.get_feature_view(projection.name)
        if len(projection.features) != len(view.features):
            raise DataError(f"service {service.name} takes a part of view {view.name}; a service takes whole views")
    return tuple(projection.name for projection in service.feature_view_projections)
