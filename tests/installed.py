"""Packages in a site-packages folder, as an installer leaves them."""

from __future__ import annotations


def install(site, name, version, **files):
    """A package in a site-packages folder, as an installer leaves it."""
    package = site / name
    package.mkdir(parents=True, exist_ok=True)
    for old in site.glob(f"{name}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    (package / "__init__.py").write_text(files.pop("init", ""))
    for module, text in files.items():
        (package / f"{module}.py").write_text(text)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    listed = [f"{name}/{file.name},," for file in sorted(package.glob("*.py"))]
    (info / "RECORD").write_text("\n".join([*listed, f"{info.name}/METADATA,,"]) + "\n")
