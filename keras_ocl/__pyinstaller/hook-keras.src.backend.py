from pathlib import Path

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, get_package_paths

from keras_ocl.plugin.edits import EDITS

FOLDER, PACKAGE = map(Path, get_package_paths("keras_ocl"))
# An editable installation has the line beside what it belongs to, others where Python looks for it.
LINES = [path for path in (PACKAGE / "plugin" / "keras_ocl.pth", FOLDER / "keras_ocl.pth") if path.is_file()]

hiddenimports = collect_submodules("keras_ocl", filter=lambda name: not name.startswith("keras_ocl.__pyinstaller"))
datas = [*collect_data_files("keras_ocl", includes=["**/*.toml"]), (str(LINES[0]), "keras_ocl/plugin")]
module_collection_mode = dict.fromkeys(EDITS, "pyz+py")
