"""The TensorFlow operations that reach beyond the graph they are in, by what they reach.

The lists were made by going through every operation that TensorFlow 2.21 registers, and those that older versions had.
An operation that TensorFlow does not have cannot run, and is not listed.
"""

PYTHON = "calls Python"
READS = "reads files"
WRITES = "writes files"
NETWORK = "talks to other processes"
HIDES = "runs a graph that is hidden in a tensor"
ENDS = "ends or reconfigures the process"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


REACHING: dict[str, frozenset[str]] = {
    PYTHON: _names("PyFunc PyFuncStateless EagerPyFunc XlaCustomCall XlaCustomCallV2"),
    READS: _names(
        # whole files and folders
        """ReadFile MatchingFiles MatchingFilesDataset ExperimentalMatchingFilesDataset ImmutableConst"""
        # readers of TensorFlow 1
        """ WholeFileReader WholeFileReaderV2 TextLineReader TextLineReaderV2 TFRecordReader TFRecordReaderV2
        FixedLengthRecordReader FixedLengthRecordReaderV2 LMDBReader RecordInput"""
        # datasets
        """ TextLineDataset TFRecordDataset TFRecordDatasetV2 FixedLengthRecordDataset FixedLengthRecordDatasetV2
        CSVDataset CSVDatasetV2 ExperimentalCSVDataset LMDBDataset ExperimentalLMDBDataset SqlDataset
        ExperimentalSqlDataset LoadDataset ListSnapshotChunksDataset SnapshotChunkDataset SnapshotDatasetReader
        SnapshotNestedDatasetReader"""
        # checkpoints and vocabularies
        """ Restore RestoreSlice RestoreV2 DTensorRestoreV2 LoadAndRemapMatrix GenerateVocabRemapping
        InitializeTableFromTextFile InitializeTableFromTextFileV2 Skipgram"""
    ),
    WRITES: _names(
        """WriteFile Save SaveSlices SaveV2 MergeV2Checkpoints DistributedSave
        SaveDataset SaveDatasetV2 DatasetToTFRecord ExperimentalDatasetToTFRecord SnapshotDataset SnapshotDatasetV2
        CacheDataset CacheDatasetV2 DumpTensor CalibrationStatisticsSaver"""
        # summary writers
        """ CreateSummaryFileWriter CreateSummaryDbWriter ImportEvent WriteSummary WriteScalarSummary WriteAudioSummary
        WriteHistogramSummary WriteImageSummary WriteGraphSummary WriteRawProtoSummary
        StatsAggregatorSetSummaryWriter"""
    ),
    NETWORK: _names(
        """Send Recv _Send _Recv _HostSend _HostRecv RemoteCall Rpc TryRpc RpcServer RpcClient RpcCall
        RpcServerRegister RpcServerStart RpcCheckStatus RpcGetValue DeleteRpcFutureResource
        DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3 DataServiceDatasetV4 RegisterDataset
        RegisterDatasetV2 WorkerHeartbeat ConfigureDistributedTPU ShutdownDistributedTPU
        BigQueryReader GcsConfigureBlockCache GcsConfigureCredentials
        NcclAllReduce NcclBroadcast NcclReduce CollectiveGather CollectiveGatherV2 CollectiveReduce CollectiveReduceV2
        CollectiveReduceV3 CollectiveReduceScatterV2 CollectiveBcastSend CollectiveBcastSendV2 CollectiveBcastRecv
        CollectiveBcastRecvV2 CollectiveAllToAllV2 CollectiveAllToAllV3 CollectiveAssignGroupV2
        CollectiveInitializeCommunicator CollectivePermute
        _NcclReduceSend _NcclReduceRecv _NcclBroadcastSend _NcclBroadcastRecv
        XlaSend XlaRecv XlaSendToHost XlaRecvFromHost _XlaSendFromHost _XlaSendFromHostV2 _XlaRecvAtHost
        _XlaRecvAtHostV2 XlaHostCompute ConfigureAndInitializeGlobalTPU ShutdownTPUSystem"""
    ),
    HIDES: _names("DatasetFromGraph _XlaHostComputeMlir MlirPassthroughOp _TPUCompileMlir"),
    ENDS: _names("Abort FileSystemSetConfiguration"),
}

_WHY = {name: why for why, names in REACHING.items() for name in names}

FROM_TEXT_FILE = _names("InitializeTableFromTextFile InitializeTableFromTextFileV2")
"""Fill a lookup table from the file that their second input names: fine where it is an asset of the model."""
FROM_CHECKPOINT = _names("Restore RestoreSlice RestoreV2")
"""Read the checkpoint that their first input names: fine where it is the model's own."""

PRINTING = _names("PrintV2")
DEBUGGING = _names("DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount DebugNumericSummary Copy CopyHost")
WITH_VOCABULARY_FILE = _names("FixedUnigramCandidateSampler")
WITH_DESCRIPTOR_FILE = _names("DecodeProtoV2 EncodeProto")
WITH_MODULE = _names("XlaCallModule")
BY_ATTRIBUTES = PRINTING | DEBUGGING | WITH_VOCABULARY_FILE | WITH_DESCRIPTOR_FILE | WITH_MODULE
"""These reach beyond the graph only with certain attributes."""
HIDDEN_ATTRIBUTE = "takes a setting from its caller"
"""Inside of a function, the call may set an attribute: its value is then not visible at the operation that uses it."""


def why(operation: str) -> str | None:
    """What an operation reaches, in words; None for one that only computes."""
    return _WHY.get(operation)
