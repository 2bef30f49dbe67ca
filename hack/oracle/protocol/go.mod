module clusterstack/oracle/protocol

go 1.26.0
