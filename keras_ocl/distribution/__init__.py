"""Several processes that compute together: collectives over MPI, handling of failures, and diagnosis.

`mpi.initialize` joins the processes; they communicate through `mpi.world` (a `communicator.Communicator`). mpi4py is imported only where
a launcher has started the process, or doctor is asked about it.
"""
