"""How a setting is read: from the environment variables that its field names, or from the file of `NAME_FILE`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource


def env(*names: str, default: Any, description: str, **constraints: Any) -> Any:
    """A field that these variables set, the preferred one first."""
    alias = names[0] if len(names) == 1 else AliasChoices(*names)
    return Field(default=default, validation_alias=alias, description=description, **constraints)


def env_names(field: FieldInfo, field_name: str) -> list[str]:
    """The environment variables that set a field, the preferred one first."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return [choice for choice in alias.choices if isinstance(choice, str)]
    return [alias if isinstance(alias, str) else field_name]


class FileSecrets(PydanticBaseSettingsSource):
    """Reads any setting NAME from the file that NAME_FILE points to (Docker and Kubernetes secrets)."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        for name in env_names(field, field_name):
            path = os.environ.get(f"{name}_FILE")
            if path:
                try:
                    return Path(path).read_text(encoding="utf-8").strip(), name, False
                except OSError as error:
                    raise ValueError(f"{name}_FILE: cannot read {path}: {error.strerror}") from error
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for field_name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, field_name)
            if value is not None:
                values[key] = value
        return values
