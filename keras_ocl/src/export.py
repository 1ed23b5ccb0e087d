"""What Keras mixes into its archives for export."""

from keras_ocl.export import OclExportArchive as OclExportArchive
